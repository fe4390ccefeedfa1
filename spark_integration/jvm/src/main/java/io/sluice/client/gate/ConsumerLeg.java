package io.sluice.client.gate;

import io.sluice.client.connection.RoleHandler;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.connection.TaskTrace;
import io.sluice.client.wire.Chunk;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.BooleanSupplier;
import java.util.stream.LongStream;

/** Runs the channels of a gate on one connection. On the wire, each request opens a gate. */
final class ConsumerLeg extends RoleHandler {
    private final TaskManagerConnection connection;
    private final long shuffleId;
    private final int startSubpartition;
    private final int endSubpartition;
    private final int credit;
    private final TaskTrace trace;
    private final long waitedBefore;

    /** All channels so far by number, cancelled ones included; null for the number of a gate. */
    private final List<ConsumerChannel> channels = new ArrayList<>();

    private final Set<Long> openGates = new HashSet<>();

    private long firstNumber;
    private boolean ponged;
    private long localBytes;
    private long remoteBytes;
    private Message.ErrorResponse gateError;

    ConsumerLeg(
            TaskManagerConnection connection,
            long shuffleId,
            int startSubpartition,
            int endSubpartition,
            int credit,
            TaskTrace trace) {
        super("on a consumer connection");
        this.connection = connection;
        this.shuffleId = shuffleId;
        this.startSubpartition = startSubpartition;
        this.endSubpartition = endSubpartition;
        this.credit = credit;
        this.trace = trace;
        this.waitedBefore = connection.waitedNanos();
        connection.setHandler(this);
    }

    TaskManagerConnection connection() {
        return connection;
    }

    void request(List<? extends ConsumerChannel> requested) throws IOException {
        if (requested.isEmpty()) {
            return;
        }
        long gate = number(null);
        List<Message.GateChannel> requests = new ArrayList<>();
        for (ConsumerChannel channel : requested) {
            long number = number(channel);
            channel.requested(connection, number);
            Source source = channel.source();
            requests.add(
                    new Message.GateChannel(
                            number,
                            source.taskManagerId(),
                            source.host(),
                            source.port(),
                            source.mapAttemptIds()));
        }
        openGates.add(gate);
        if (trace != null) {
            trace.send(connection, gate);
        }
        connection.send(
                new Message.OpenGate(
                        gate, shuffleId, startSubpartition, endSubpartition, credit, requests));
        connection.sendNow();
    }

    private long number(ConsumerChannel channel) {
        long number = connection.nextNumber();
        if (channels.isEmpty()) {
            firstNumber = number;
        }
        channels.add(channel);
        return number;
    }

    /** Cancels a channel that has been replaced. */
    void cancel(ConsumerChannel channel) throws IOException {
        channel.release();
        if (channel.isOn(connection) && !channel.isReceived()) {
            // No effect if the channel has failed at the TaskManager.
            connection.send(new Message.CancelPartitionRequest(channel.number()));
        }
    }

    /**
     * Reports damaged data to the TaskManager that has it, which verifies its bytes and drops them
     * if they are damaged. There is no answer; the next request is answered after the verdict.
     *
     * @param unread the channels that are not read yet, reported if the failure names no map output
     */
    void reportDamage(SourceFailure failure, List<InputChannel> unread) throws IOException {
        if ((connection.taskManager().features() & Frames.DAMAGE_REPORTS) == 0) {
            return;
        }
        Source source = failure.source();
        LongStream ids =
                failure.mapAttemptId() == null
                        ? unread.stream()
                                .flatMapToLong(c -> LongStream.of(c.source().mapAttemptIds()))
                        : LongStream.of(failure.mapAttemptId());
        connection.send(
                new Message.ReportDamage(
                        shuffleId,
                        startSubpartition,
                        endSubpartition,
                        source.taskManagerId(),
                        source.host(),
                        source.port(),
                        ids.limit(Frames.MAX_LOST_ATTEMPTS).boxed().toList()));
    }

    /**
     * Waits until {@code done}.
     *
     * @param wakeAtNanos latest return, as {@link System#nanoTime}
     */
    void await(BooleanSupplier done, long wakeAtNanos) throws IOException {
        connection
                .waits()
                .await(() -> done.getAsBoolean() || gateError != null, "map outputs", wakeAtNanos);
        checkGate();
    }

    /** Waits as above; {@code done} is also asked when other connections have received bytes. */
    void awaitWith(List<TaskManagerConnection> others, BooleanSupplier done, long wakeAtNanos)
            throws IOException {
        connection.awaitWith(
                others, () -> done.getAsBoolean() || gateError != null, "map outputs", wakeAtNanos);
        checkGate();
    }

    /** Dispatches what has arrived, without waiting. */
    void receive() throws IOException {
        connection.receive();
        checkGate();
    }

    /** Waits until {@code done} while the own TaskManager answers pings. */
    void awaitWhileAlive(BooleanSupplier done) throws IOException {
        connection
                .waits()
                .awaitWhileAlive(
                        () -> done.getAsBoolean() || gateError != null,
                        () -> Long.MAX_VALUE,
                        "records of running tasks");
        checkGate();
    }

    private void checkGate() throws ClientException.Remote {
        if (gateError != null) {
            throw new ClientException.Remote(connection.endpoint().toString(), gateError);
        }
    }

    /** Returns whether the TaskManager answers a ping within the connect timeout. */
    boolean isAlive() {
        try {
            ponged = false;
            connection.send(new Message.Ping(System.nanoTime()));
            connection.waits().awaitSoon(() -> ponged, "a sign of life");
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    /** Returns the nanoseconds waited so far. Not valid after the release of the connection. */
    long waitedNanos() {
        return connection.waitedNanos() - waitedBefore;
    }

    long localBytes() {
        return localBytes;
    }

    long remoteBytes() {
        return remoteBytes;
    }

    /**
     * Closes the gates; returns whether another task can use the connection. If all data has
     * arrived, it does not wait for the answer, which the next user of the connection ignores.
     */
    boolean close() {
        try {
            for (long gate : openGates) {
                connection.send(new Message.CloseGate(gate));
            }
            if (hasReceivedAll()) {
                connection.flush();
            } else {
                connection.waits().awaitEnd(openGates::isEmpty, "the end of a gate");
            }
            return gateError == null;
        } catch (IOException e) {
            // The caller closes the connection, which closes the gates.
            return false;
        }
    }

    private boolean hasReceivedAll() {
        for (ConsumerChannel channel : channels) {
            if (channel != null && !channel.isReceived()) {
                return false;
            }
        }
        return true;
    }

    /** Returns whether a number, which always increases, belongs to the previous task. */
    private boolean isOfTaskBefore(long number) {
        return (number - firstNumber & TaskManagerConnection.MAX_NUMBER)
                > TaskManagerConnection.MAX_NUMBER / 2;
    }

    private ConsumerChannel channel(long number) throws ClientException.Protocol {
        long index = number - firstNumber & TaskManagerConnection.MAX_NUMBER;
        ConsumerChannel channel = index < channels.size() ? channels.get((int) index) : null;
        if (channel == null || channel.number() != number) {
            throw new ClientException.Protocol(
                    ErrorCode.UNKNOWN_CHANNEL,
                    "message for channel " + number + ", which was never requested",
                    null);
        }
        return channel;
    }

    @Override
    public void onMessage(Message message) throws IOException {
        if (message instanceof Message.GateClosed closed) {
            openGates.remove(closed.gate());
        } else if (message instanceof Message.ErrorResponse response) {
            if (openGates.remove(response.channel())) {
                gateError = response;
            } else if (!isOfTaskBefore(response.channel())) {
                channel(response.channel()).fail(response);
            }
        } else if (message instanceof Message.Pong) {
            ponged = true;
        } else if (!(message instanceof Message.GateOpened)
                && !(message instanceof Message.BacklogAnnouncement)) {
            throw unexpected(message);
        }
    }

    @Override
    public void onBuffer(Message.BufferResponse response, Chunk payload) throws IOException {
        ConsumerChannel channel = channel(response.channel());
        long bytes = channel.add(response, payload);
        if (channel.isLocal()) {
            localBytes += bytes;
        } else {
            remoteBytes += bytes;
        }
    }

    @Override
    public void onEnd(Message.BufferResponse response, Message.EndOfPartition event)
            throws IOException {
        channel(response.channel()).end(response, event);
    }
}
