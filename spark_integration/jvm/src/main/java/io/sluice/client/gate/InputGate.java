package io.sluice.client.gate;

import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.failover.Absences;
import io.sluice.client.failover.Patience;
import io.sluice.client.failover.PlaceDirectory;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.Chunk;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.OptionalLong;
import java.util.Set;
import java.util.function.BooleanSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The consumer leg of one task: one channel for each source, read stream by stream.
 *
 * <p>A TaskManager sends map outputs in the order of the request, which is that of the map tasks.
 * Between two streams the gate takes any channel that has data, so no TaskManager waits for
 * another; or, in map order, the channel with the next map output of all. Inside a stream it stays
 * with that channel. Buffers that arrive on the other channels stay in their queues, which are
 * bounded by their credit: each channel has its own, so that the one that is waited for can go on.
 *
 * <p>The gate recovers where it can and continues behind the last verified block: it requests the
 * rest of a source once more after a damaged block, at another TaskManager if one has it ({@link
 * PlaceDirectory}), and for a limited time while the TaskManager of a source, or the own one, is
 * out of reach ({@link SourceRetries}). It begins at another TaskManager if that of a source was
 * out of reach for another gate just before ({@link Absences}).
 */
public final class InputGate extends ConsumerGate<BlockStream> {
    private static final Logger LOG = LoggerFactory.getLogger(InputGate.class);

    private final ConnectionSource connections;
    private final OtherPlaces elsewhere;
    private final boolean inMapOrder;
    private final List<InputChannel> channels = new ArrayList<>();

    /** Holds a block that spans several buffers; null before the first such block. */
    private Chunk blockBuffer;

    private BlockStream stream;
    private Patience patience;
    private int nextChannel;
    private int unasked;

    /** Whether some channels have an order that no TaskManager keeps between them. */
    private boolean hasTwins;

    /**
     * Opens the gate.
     *
     * @param connections gives the gate a connection, and another one when that is lost
     * @param startSubpartition first partition of the range
     * @param endSubpartition first partition behind the range
     * @param credit buffers that each channel may have under way
     * @param inMapOrder whether to read the sources together in map order, not only each of them
     */
    public InputGate(
            ConnectionSource connections,
            long shuffleId,
            int startSubpartition,
            int endSubpartition,
            int credit,
            boolean inMapOrder,
            List<Source> sources)
            throws IOException {
        super(shuffleId, startSubpartition, endSubpartition, credit, connections::giveBack);
        this.connections = connections;
        this.elsewhere = new OtherPlaces(connections, shuffleId, credit);
        this.inMapOrder = inMapOrder;
        long now = System.nanoTime();
        for (Source source : sources) {
            SourceRetries retries = new SourceRetries(connections.returnTimeoutMillis());
            SourceProgress progress =
                    new SourceProgress(source, startSubpartition, endSubpartition, retries);
            channels.addAll(elsewhere.first(progress, now));
        }
        lookForTwins();
        connect();
        open();
    }

    @Override
    List<InputChannel> channels() {
        return channels;
    }

    /**
     * Finds the next stream on any channel that has data; skips the rest of the previous stream,
     * and checks it.
     */
    @Override
    BlockStream find() throws IOException {
        if (stream != null) {
            stream.drain();
        }
        stream = openStream();
        return stream;
    }

    private BlockStream openStream() throws IOException {
        InputChannel channel = null;
        while (openChannels > 0) {
            try {
                channel = pick();
                if (channel == null) {
                    await(() -> pick() != null);
                } else if (channel.isDrained()) {
                    channel.complete();
                    openChannels--;
                } else {
                    BlockStream next = new BlockStream(this, channel);
                    if (!next.isEmpty()) {
                        return next;
                    }
                }
            } catch (IOException e) {
                recover(channel, e);
            }
        }
        return null;
    }

    private InputChannel pick() {
        if (inMapOrder) {
            InputChannel first = first();
            return first != null && first.isReady() ? first : null;
        }
        int n = channels.size();
        for (int i = 0; i < n; i++) {
            int index = nextChannel + i < n ? nextChannel + i : nextChannel + i - n;
            InputChannel channel = channels.get(index);
            if (channel.isReady() && !(hasTwins && hasEarlierTwin(channel))) {
                // Round robin: the next search begins behind this channel.
                nextChannel = index + 1 < n ? index + 1 : 0;
                return channel;
            }
        }
        return null;
    }

    /** Returns the channel with the first unread map output; null if nothing is left. */
    private InputChannel first() {
        InputChannel first = null;
        for (InputChannel channel : channels) {
            if (!channel.isComplete() && (first == null || channel.isBefore(first))) {
                first = channel;
            }
        }
        return first;
    }

    private boolean hasEarlierTwin(InputChannel channel) {
        for (InputChannel other : channels) {
            if (other.isBefore(channel) && other.isTwinOf(channel)) {
                return true;
            }
        }
        return false;
    }

    /** Called when channels were added. */
    private void lookForTwins() {
        Set<String> taskManagers = new HashSet<>();
        Set<String> firstTaskManagers = new HashSet<>();
        for (InputChannel channel : channels) {
            taskManagers.add(channel.source().taskManagerId());
            firstTaskManagers.add(channel.progress().firstTaskManagerId());
        }
        hasTwins = Math.min(taskManagers.size(), firstTaskManagers.size()) < channels.size();
    }

    /** Reads the next block of a stream; waits for it, and recovers if its channel fails. */
    synchronized void readBlock(BlockStream reader, Block block) throws IOException {
        while (true) {
            if (done) {
                throw closedMeanwhile();
            }
            try {
                reader.channel().readBlock(block, this);
                return;
            } catch (IOException e) {
                try {
                    reader.continueOn(recover(reader.channel(), e));
                } catch (IOException | RuntimeException last) {
                    failed = true;
                    throw last;
                }
            } catch (RuntimeException e) {
                failed = true;
                throw e;
            }
        }
    }

    void awaitData(InputChannel channel) throws IOException {
        await(() -> channel.hasData() || channel.hasEnded());
    }

    /** Waits, and meanwhile requests those channels whose time has come. */
    private void await(BooleanSupplier ready) throws IOException {
        while (!ready.getAsBoolean()) {
            leg.await(ready, ask());
        }
    }

    /** Returns memory for a block of the given length; the previous block is no longer needed. */
    byte[] blockBuffer(int length) {
        if (blockBuffer == null || blockBuffer.bytes.length < length) {
            recycleBlockBuffer();
            int segment = leg.connection().segmentBytes();
            blockBuffer = chunks().take(length <= segment ? segment : Blocks.MAX_STORED_BYTES);
        }
        return blockBuffer.bytes;
    }

    private void recycleBlockBuffer() {
        if (blockBuffer != null) {
            chunks().recycle(blockBuffer);
            blockBuffer = null;
        }
    }

    @Override
    void recycleBuffers() {
        super.recycleBuffers();
        recycleBlockBuffer();
    }

    private ChunkPool chunks() {
        return leg.connection().options().chunks();
    }

    // ---- requests, and requests again

    /**
     * Requests all channels. An idle connection can be lost without a sign; the gate recovers as if
     * it were lost later.
     */
    @Override
    void askFirst() throws IOException {
        try {
            super.askFirst();
        } catch (IOException e) {
            recover(null, e);
        }
    }

    private void connect() throws IOException {
        long start = System.nanoTime();
        TaskManagerConnection connection = connections.lease();
        waitedBefore += System.nanoTime() - start;
        connections.absences().remove(connection.taskManager().taskManagerId());
        use(connection);
    }

    /**
     * Requests the channels that are due; returns when the next one is due, {@code Long.MAX_VALUE}
     * for never.
     */
    private long ask() throws IOException {
        long next = Long.MAX_VALUE;
        if (unasked == 0) {
            return next;
        }
        long now = System.nanoTime();
        List<InputChannel> due = new ArrayList<>();
        for (InputChannel channel : channels) {
            if (!channel.isAsked()) {
                long left = channel.askAtNanos() - now;
                if (left <= 0) {
                    due.add(channel);
                } else if (next == Long.MAX_VALUE || channel.askAtNanos() - next < 0) {
                    next = channel.askAtNanos();
                }
            }
        }
        unasked -= due.size();
        leg.ask(due);
        return next;
    }

    /**
     * Requests again the data that a failure left unread.
     *
     * @param channel the channel that was being read
     * @return its replacement; a map attempt that was half read continues there
     * @throws IOException {@code failure}, if it is final
     */
    private InputChannel recover(InputChannel channel, IOException failure) throws IOException {
        if (failure instanceof SourceFailure source) {
            return recoverSource(channel, source);
        }
        if (failure instanceof ClientException.Deadline && !cancelled) {
            return leaveStalled(channel, failure);
        }
        if (!ClientException.isLostConnection(failure) || cancelled) {
            throw failure;
        }
        return reconnect(channel, failure);
    }

    private InputChannel recoverSource(InputChannel channel, SourceFailure failure)
            throws IOException {
        List<InputChannel> rest = rest(channel, System.nanoTime());
        if (rest.isEmpty() && failure.isDamage()) {
            // Every map output was complete, and yet the totals do not match.
            throw failure;
        }
        SourceRetries retries = channel.progress().retries();
        if (rest.isEmpty() || channel.isLost()) {
            return replace(channel, rest, failure);
        }
        if (retries.refetches(failure)) {
            connections.refetched();
            return replace(channel, rest, failure);
        }
        List<InputChannel> others = elsewhere.of(channel, failure);
        if (!others.isEmpty()) {
            return replace(channel, others, failure);
        }
        OptionalLong at = retries.nextAttempt(failure);
        if (at.isEmpty()) {
            throw failure;
        }
        connections.reconnected();
        return replace(channel, rest(channel, at.getAsLong()), failure);
    }

    /**
     * Recovers when nothing came for too long. If the own TaskManager answers, a remote source is
     * stalled, and is left if other TaskManagers have its data.
     */
    private InputChannel leaveStalled(InputChannel waitedFor, IOException failure)
            throws IOException {
        List<InputChannel> stalled = new ArrayList<>(channels);
        if (waitedFor != null) {
            stalled.remove(waitedFor);
            stalled.add(0, waitedFor);
        }
        stalled.removeIf(c -> !c.isAsked() || c.isReceived() || c.isLocal());
        if (stalled.isEmpty() || !leg.isAlive()) {
            throw failure;
        }
        String taskManagerId = stalled.get(0).source().taskManagerId();
        InputChannel replacement = waitedFor;
        for (InputChannel channel : stalled) {
            if (channel.source().taskManagerId().equals(taskManagerId)) {
                SourceFailure of =
                        channel.progress()
                                .failure(
                                        null,
                                        ErrorCode.DEADLINE_EXCEEDED,
                                        failure.getMessage(),
                                        failure);
                List<InputChannel> others = elsewhere.of(channel, of);
                if (others.isEmpty()) {
                    throw of;
                }
                InputChannel other = replace(channel, others, of);
                replacement = channel == waitedFor ? other : replacement;
            }
        }
        return replacement;
    }

    private InputChannel replace(
            InputChannel channel, List<InputChannel> rest, SourceFailure failure)
            throws IOException {
        LOG.info("Requesting the rest of a source again: {}", failure.getMessage());
        leg.retire(channel);
        put(channel, rest);
        return rest.isEmpty() ? null : rest.get(0);
    }

    /**
     * Requests all unread data again after the own TaskManager was lost, through the same or
     * another one.
     */
    private InputChannel reconnect(InputChannel channel, IOException failure) throws IOException {
        if (patience == null) {
            patience = new Patience(connections.returnTimeoutMillis());
        } else if (!patience.pause("a TaskManager to read from")) {
            throw failure;
        }
        LOG.info("Reading continues after a lost connection: {}", failure.getMessage());
        drop();
        connections.reconnected();
        InputChannel replacement = channel;
        for (InputChannel lost : List.copyOf(channels)) {
            if (lost.isReceived() || !lost.isAsked()) {
                continue;
            }
            if (lost == channel) {
                // It was lost inside a block, and no more bytes of it will come.
                List<InputChannel> rest = rest(lost, System.nanoTime());
                lost.release();
                put(lost, rest);
                replacement = rest.isEmpty() ? null : rest.get(0);
            } else {
                // Read what has arrived of the others before the rest is requested.
                lost.lose(failure);
            }
        }
        connect();
        return replacement;
    }

    private List<InputChannel> rest(InputChannel channel, long atNanos) {
        List<InputChannel> rest = new ArrayList<>();
        for (SourceProgress part : channel.progress().rest()) {
            rest.add(new InputChannel(part, credit, atNanos));
        }
        return rest;
    }

    private void put(InputChannel old, List<InputChannel> rest) {
        channels.remove(old);
        channels.addAll(rest);
        lookForTwins();
        openChannels += rest.size() - 1;
        unasked += rest.size();
        nextChannel = 0;
    }

    /** Called for each block that was read: the own TaskManager works. */
    void progress() {
        patience = null;
    }
}
