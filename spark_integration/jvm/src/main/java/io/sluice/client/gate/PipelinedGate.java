package io.sluice.client.gate;

import io.sluice.client.connection.ConnectionPool;
import io.sluice.client.connection.TaskManagerConnection;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;

/**
 * Reads records while their producers write, with a channel for each producer, until all producers
 * have finished. Credit bounds the buffers of a slow reader, and its producers wait.
 */
public final class PipelinedGate extends ConsumerGate<PipelinedGate.ReceivedRecord> {
    private final List<PipelinedChannel> channels = new ArrayList<>();
    private final ArrayDeque<PipelinedChannel> withBytes = new ArrayDeque<>();
    private final ReceivedRecord record = new ReceivedRecord();

    private PipelinedChannel last;

    /** A record at {@code bytes[offset .. offset + length)}, valid until the next one. */
    public static final class ReceivedRecord {
        private int source;
        private byte[] bytes;
        private int offset;
        private int length;

        void set(int source, byte[] bytes, int offset, int length) {
            this.source = source;
            this.bytes = bytes;
            this.offset = offset;
            this.length = length;
        }

        /** Returns the index of the gate's source that wrote it. */
        public int source() {
            return source;
        }

        public byte[] bytes() {
            return bytes;
        }

        public int offset() {
            return offset;
        }

        public int length() {
            return length;
        }
    }

    /**
     * Opens the gate on a leased connection, which {@link #close} releases or closes.
     *
     * @param credit buffers in flight to each channel
     * @param sources a source with one map attempt for each producer
     */
    public PipelinedGate(
            TaskManagerConnection connection,
            ConnectionPool pool,
            long shuffleId,
            int subpartition,
            int credit,
            List<Source> sources)
            throws IOException {
        super(shuffleId, subpartition, subpartition + 1, credit, pool::release);
        for (Source source : sources) {
            channels.add(new PipelinedChannel(source, channels.size(), credit, withBytes));
        }
        use(connection);
        open();
    }

    @Override
    List<PipelinedChannel> channels() {
        return channels;
    }

    @Override
    ReceivedRecord find() throws IOException {
        if (last != null && last.releaseHead()) {
            // Round robin, one chunk of each channel.
            withBytes.add(withBytes.remove());
        }
        last = null;
        while (true) {
            PipelinedChannel channel = withBytes.peek();
            if (channel == null) {
                if (openChannels == 0) {
                    return null;
                }
                leg.awaitWhileAlive(() -> !withBytes.isEmpty());
            } else if (channel.next(record)) {
                last = channel;
                return record;
            } else {
                withBytes.remove();
                channel.dequeued();
                if (channel.isReceived()) {
                    openChannels--;
                }
            }
        }
    }
}
