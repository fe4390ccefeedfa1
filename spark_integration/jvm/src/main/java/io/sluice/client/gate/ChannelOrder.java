package io.sluice.client.gate;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** Chooses the channel of an input gate that is read next. */
final class ChannelOrder {
    private final List<InputChannel> channels;
    private final boolean inMapOrder;
    private int nextChannel;

    /** Whether several channels have one TaskManager, so that the gate has to order them. */
    private boolean sharesTaskManagers;

    /**
     * @param channels those of the gate, whose changes are reported to {@link #changed}
     * @param inMapOrder whether to read all sources together in map order
     */
    ChannelOrder(List<InputChannel> channels, boolean inMapOrder) {
        this.channels = channels;
        this.inMapOrder = inMapOrder;
    }

    /** Called after channels were added or replaced. */
    void changed() {
        nextChannel = 0;
        Set<String> taskManagers = new HashSet<>();
        Set<String> firstTaskManagers = new HashSet<>();
        for (InputChannel channel : channels) {
            taskManagers.add(channel.source().taskManagerId());
            firstTaskManagers.add(channel.progress().firstTaskManagerId());
        }
        sharesTaskManagers =
                Math.min(taskManagers.size(), firstTaskManagers.size()) < channels.size();
    }

    /** Returns the channel to read; null if that, or any, has to be waited for. */
    InputChannel pick() {
        if (inMapOrder) {
            InputChannel first = first();
            return first != null && first.isReady() ? first : null;
        }
        int n = channels.size();
        for (int i = 0; i < n; i++) {
            int index = nextChannel + i < n ? nextChannel + i : nextChannel + i - n;
            InputChannel channel = channels.get(index);
            if (channel.isReady()
                    && !(sharesTaskManagers && hasEarlierOnSameTaskManager(channel))) {
                // Round robin: the next search starts after this channel.
                nextChannel = index + 1 < n ? index + 1 : 0;
                return channel;
            }
        }
        return null;
    }

    /** Returns the map index of the next map output; after the last one the greatest number. */
    int nextMapIndex() {
        InputChannel first = first();
        return first == null ? SourceProgress.ALL_READ : first.progress().nextMapIndex();
    }

    /** Returns the channel with the first unread map output; null after the last one. */
    private InputChannel first() {
        InputChannel first = null;
        for (InputChannel channel : channels) {
            if (!channel.isComplete() && (first == null || channel.isBefore(first))) {
                first = channel;
            }
        }
        return first;
    }

    private boolean hasEarlierOnSameTaskManager(InputChannel channel) {
        for (InputChannel other : channels) {
            if (other.isBefore(channel) && other.sharesTaskManagerWith(channel)) {
                return true;
            }
        }
        return false;
    }
}
