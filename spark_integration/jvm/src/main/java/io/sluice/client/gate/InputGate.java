package io.sluice.client.gate;

import io.sluice.client.connection.ConnectionSource;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.connection.TaskTrace;
import io.sluice.client.failover.RetryDeadline;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.Chunk;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.function.BooleanSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads the stored map outputs of one task, with a channel for each source, stream by stream.
 *
 * <p>A TaskManager sends map outputs in the order of the request, which is that of the map tasks.
 * Between two streams the gate takes any channel that has data or, in map order, the channel with
 * the next map output. The credit of each channel bounds its queue.
 *
 * <p>After a failure the gate continues behind the last verified block. It requests damaged data
 * once more, reads replicas ({@link ReplicaFailover}), and reconnects until a deadline ({@link
 * SourceRetries}).
 */
public final class InputGate extends ConsumerGate<BlockStream> {
    private static final Logger LOG = LoggerFactory.getLogger(InputGate.class);

    private final ConnectionSource connections;
    private final ReplicaFailover failover;
    private final List<InputChannel> channels = new ArrayList<>();
    private final ChannelOrder order;

    /** Memory for blocks that span several buffers; null before the first one. */
    private Chunk blockBuffer;

    private BlockStream stream;
    private RetryDeadline deadline;
    private int unrequested;

    /** When the next channel has to be requested, or {@code Long.MAX_VALUE}. */
    private long nextDue = Long.MAX_VALUE;

    /**
     * A failure in {@link #poll} or {@link #awaitAny}, which {@link #next} recovers from or throws;
     * or null.
     */
    private IOException pending;

    /**
     * Opens the gate.
     *
     * @param endSubpartition exclusive end of the range
     * @param credit messages in flight to each channel
     * @param inMapOrder whether to read all sources together in map order
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
        super(shuffleId, startSubpartition, endSubpartition, credit, connections::release);
        this.connections = connections;
        this.failover = new ReplicaFailover(connections, shuffleId, credit);
        this.order = new ChannelOrder(channels, inMapOrder);
        long now = System.nanoTime();
        for (Source source : sources) {
            SourceRetries retries =
                    new SourceRetries(
                            connections.returnTimeoutMillis(), connections.refusedTimeoutMillis());
            SourceProgress progress =
                    new SourceProgress(source, startSubpartition, endSubpartition, retries);
            channels.addAll(failover.first(progress, now));
        }
        order.changed();
        connect();
        open();
    }

    @Override
    TaskTrace trace() {
        return connections.trace();
    }

    @Override
    List<InputChannel> channels() {
        return channels;
    }

    @Override
    BlockStream find() throws IOException {
        return find(true);
    }

    /**
     * Verifies the rest of the previous stream, and opens the next one.
     *
     * @param waits whether to wait for a channel; otherwise returns null if none is ready
     */
    private BlockStream find(boolean waits) throws IOException {
        if (stream != null) {
            stream.drain();
        }
        stream = openStream(waits);
        return stream;
    }

    private BlockStream openStream(boolean waits) throws IOException {
        InputChannel channel = null;
        while (openChannels > 0) {
            try {
                if (pending != null) {
                    IOException failure = pending;
                    pending = null;
                    throw failure;
                }
                channel = order.pick();
                if (channel == null) {
                    if (!waits) {
                        return null;
                    }
                    await(() -> order.pick() != null);
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

    /** Reads the next block of a stream; recovers if its channel fails. */
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

    /** Waits, and requests the channels that become due. */
    private void await(BooleanSupplier ready) throws IOException {
        while (!ready.getAsBoolean()) {
            leg.await(ready, requestDue());
        }
    }

    /** Returns memory for a block, which may be that of the previous block. */
    byte[] blockBuffer(int length) {
        if (blockBuffer == null || blockBuffer.bytes.length < length) {
            recycleBlockBuffer();
            int segment = Math.min(leg.connection().segmentBytes(), Blocks.MAX_STORED_BYTES);
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

    // ---- as a part of a union

    /**
     * Completes ended channels and recovers from failures like {@link #next}, but does not wait for
     * a channel.
     *
     * @return null if no channel is ready, or at the end ({@link #hasEnded})
     */
    BlockStream nextIfReady() throws IOException {
        return next(() -> find(false));
    }

    /** Returns whether all streams have been read, and the gate has closed itself. */
    synchronized boolean hasEnded() {
        return done && openChannels == 0;
    }

    /** Takes what has arrived, without waiting; returns whether {@link #next} can go on. */
    synchronized boolean poll() {
        claim();
        if (isReady()) {
            return true;
        }
        try {
            requestDue();
            leg.receive();
        } catch (IOException e) {
            pending = e;
        }
        return isReady();
    }

    /** Waits until {@link #next} of this gate or of another one can go on. */
    synchronized void awaitAny(List<InputGate> others) {
        BooleanSupplier ready = () -> isReady() || others.stream().anyMatch(InputGate::poll);
        try {
            while (!ready.getAsBoolean()) {
                long wakeAt = requestDue();
                List<TaskManagerConnection> connections = new ArrayList<>();
                for (InputGate other : others) {
                    connections.add(other.leg.connection());
                    wakeAt = wakeAt - other.nextDue < 0 ? wakeAt : other.nextDue;
                }
                leg.awaitWith(connections, ready, wakeAt);
            }
        } catch (IOException e) {
            pending = e;
        }
    }

    private boolean isReady() {
        return done || pending != null || order.pick() != null;
    }

    /** Returns the map index of the next map output; after the last one the greatest number. */
    synchronized int nextMapIndex() {
        return order.nextMapIndex();
    }

    // ---- requests and recovery

    /** Requests all channels; recovers if the idle connection turns out to be lost. */
    @Override
    void requestFirst() throws IOException {
        try {
            super.requestFirst();
        } catch (IOException e) {
            recover(null, e);
        }
    }

    private void connect() throws IOException {
        long start = System.nanoTime();
        TaskManagerConnection connection = connections.lease();
        waitedBefore += System.nanoTime() - start;
        connections.unreachable().remove(connection.taskManager().taskManagerId());
        use(connection);
    }

    /** Requests channels that are due; returns when the next is, or {@code Long.MAX_VALUE}. */
    private long requestDue() throws IOException {
        nextDue = Long.MAX_VALUE;
        if (unrequested == 0) {
            return nextDue;
        }
        long now = System.nanoTime();
        List<InputChannel> due = new ArrayList<>();
        for (InputChannel channel : channels) {
            if (!channel.isRequested()) {
                long left = channel.requestAtNanos() - now;
                if (left <= 0) {
                    due.add(channel);
                } else if (nextDue == Long.MAX_VALUE || channel.requestAtNanos() - nextDue < 0) {
                    nextDue = channel.requestAtNanos();
                }
            }
        }
        unrequested -= due.size();
        leg.request(due);
        return nextDue;
    }

    /**
     * Requests the unread data again.
     *
     * @param channel the channel being read
     * @return its replacement, on which a partly read map attempt continues
     * @throws IOException {@code failure}, if it is final
     */
    private InputChannel recover(InputChannel channel, IOException failure) throws IOException {
        if (failure instanceof SourceFailure source) {
            return recoverSource(channel, source);
        }
        if (failure instanceof ClientException.Deadline && !cancelled) {
            return failOverStalled(channel, failure);
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
            // Every map output is complete, but the totals do not match.
            throw failure;
        }
        if (failure.isFoundDamage() && !channel.isLost()) {
            leg.reportDamage(failure, rest);
        }
        SourceRetries retries = channel.progress().retries();
        if (rest.isEmpty()) {
            return replace(channel, rest, failure);
        }
        if (channel.isLost()) {
            return replace(channel, restElsewhere(channel), failure);
        }
        if (retries.refetches(failure)) {
            connections.refetched();
            return replace(channel, rest, failure);
        }
        List<InputChannel> others = failover.failOver(channel, failure);
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

    /** Fails over from a stalled remote source after a deadline, if the own TaskManager answers. */
    private InputChannel failOverStalled(InputChannel waitedFor, IOException failure)
            throws IOException {
        List<InputChannel> stalled = new ArrayList<>(channels);
        if (waitedFor != null) {
            stalled.remove(waitedFor);
            stalled.add(0, waitedFor);
        }
        stalled.removeIf(c -> !c.isRequested() || c.isReceived() || c.isDirect());
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
                List<InputChannel> others = failover.failOver(channel, of);
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
        LOG.info("Requesting the unread data of a source again: {}", failure.getMessage());
        leg.cancel(channel);
        put(channel, rest);
        return rest.isEmpty() ? null : rest.get(0);
    }

    /** Connects to the same or another TaskManager, and requests all unread data again. */
    private InputChannel reconnect(InputChannel channel, IOException failure) throws IOException {
        if (deadline == null) {
            deadline = new RetryDeadline(connections.returnTimeoutMillis());
        } else if (!deadline.pause("a TaskManager to read from")) {
            throw failure;
        }
        LOG.info("Reconnecting after a lost connection: {}", failure.getMessage());
        if (failure instanceof ClientException.Silent) {
            connections.silent(leg.connection());
        }
        drop();
        connections.reconnected();
        InputChannel replacement = channel;
        for (InputChannel lost : List.copyOf(channels)) {
            if (lost.isReceived() || !lost.isRequested()) {
                continue;
            }
            if (lost == channel) {
                // The rest of its current block will not arrive.
                List<InputChannel> rest = restElsewhere(lost);
                lost.release();
                put(lost, rest);
                replacement = rest.isEmpty() ? null : rest.get(0);
            } else {
                // Data that has arrived is read before the rest is requested.
                lost.markLost(failure);
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

    /**
     * Returns the unread data after the loss of the own TaskManager: data of one that is known to
     * be unreachable, as the own one may be, is read from replicas at once.
     */
    private List<InputChannel> restElsewhere(InputChannel channel) throws IOException {
        List<InputChannel> rest = new ArrayList<>();
        for (SourceProgress part : channel.progress().rest()) {
            rest.addAll(failover.first(part, System.nanoTime()));
        }
        return rest;
    }

    private void put(InputChannel old, List<InputChannel> rest) {
        channels.remove(old);
        channels.addAll(rest);
        order.changed();
        openChannels += rest.size() - 1;
        unrequested += rest.size();
    }

    /** Called for each block read: the own TaskManager works. */
    void progress() {
        deadline = null;
    }
}
