package io.sluice.client.connection;

import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Queue;
import java.util.function.BooleanSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The driver leg: keeps an application alive on one TaskManager, releases its data, and receives
 * events of its map outputs. Not thread safe.
 */
public final class DriverClient implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(DriverClient.class);

    /** Kind of an ErrorResponse: the receiver is at fault. */
    private static final int REMOTE_FAULT = 2;

    private final TaskManagerConnection connection;
    private final OutputEvents events;

    /** Received events; they are dispatched, and acknowledged, after the frames. */
    private final Queue<Message> received = new ArrayDeque<>();

    private final Queue<Message.MoveNoted> unacknowledged = new ArrayDeque<>();
    private long sentNonce;
    private long checks;
    private Message answer;

    /**
     * Connects as a driver.
     *
     * @param events called by the thread that uses this client
     * @throws ClientException.ConnectFailed if no TaskManager answers there
     */
    public DriverClient(Endpoint endpoint, ClientOptions options, OutputEvents events)
            throws ClientException {
        this.events = events;
        connection =
                TaskManagerConnection.connect(
                        endpoint, options, Message.ROLE_DRIVER, new Handler(endpoint));
    }

    public Message.HelloAck taskManager() {
        return connection.taskManager();
    }

    /** Sends the reason why the TaskManager is not used, and closes the connection. */
    public void refuse(ClientException why) {
        try {
            connection.send(
                    new Message.ErrorResponse(
                            null,
                            why.code().number(),
                            REMOTE_FAULT,
                            true,
                            why.getMessage(),
                            "",
                            "",
                            null));
            connection.flush();
        } catch (IOException e) {
            LOG.debug("the refusal did not reach {}", connection.endpoint(), e);
        } finally {
            close();
        }
    }

    /** Announces another TaskManager of the application, with the next message. */
    public void announce(Message.KnownTaskManager other) throws IOException {
        connection.send(other);
    }

    /** Sends everything buffered. */
    public void flush() throws IOException {
        try {
            connection.flush();
        } finally {
            dispatchEvents();
        }
        acknowledgeMoves();
    }

    /** Pings the TaskManager, and waits for the answer. */
    public void ping() throws IOException {
        sentNonce++;
        ask(
                new Message.Ping(sentNonce),
                () -> answer instanceof Message.Pong pong && pong.nonce() == sentNonce,
                "a pong");
    }

    /** Releases all data of a shuffle; returns the number of bytes freed. */
    public long releaseShuffle(int shuffleId) throws IOException {
        return release(shuffleId, new Message.ReleaseShuffle(shuffleId));
    }

    /**
     * Releases the data of a shuffle's map attempts below {@code end}; later commits of them are
     * refused. Returns the number of bytes freed.
     */
    public long releaseAttempts(int shuffleId, long end) throws IOException {
        return release(shuffleId, new Message.ReleaseAttempts(shuffleId, end));
    }

    private long release(int shuffleId, Message question) throws IOException {
        Message.ShuffleReleased released =
                (Message.ShuffleReleased)
                        ask(
                                question,
                                () ->
                                        answer instanceof Message.ShuffleReleased of
                                                && of.shuffleId() == shuffleId,
                                "the release of a shuffle");
        return released.freedBytes();
    }

    /** Makes the TaskManager report which of these map outputs it has lost. */
    public void check(int shuffleId, List<Long> mapAttemptIds) throws IOException {
        for (int from = 0; from < mapAttemptIds.size(); from += Frames.MAX_LOST_ATTEMPTS) {
            int to = Math.min(from + Frames.MAX_LOST_ATTEMPTS, mapAttemptIds.size());
            long check = ++checks & 0xFFFF_FFFFL;
            ask(
                    new Message.CheckOutputs(check, shuffleId, mapAttemptIds.subList(from, to)),
                    () -> answer instanceof Message.OutputsChecked of && of.check() == check,
                    "a check of map outputs");
        }
    }

    /** Releases all data of the application; returns the number of bytes freed. */
    public long releaseApplication() throws IOException {
        Message.ApplicationReleased released =
                (Message.ApplicationReleased)
                        ask(
                                new Message.ReleaseApplication(),
                                () -> answer instanceof Message.ApplicationReleased,
                                "the release of the application");
        return released.freedBytes();
    }

    /** Dispatches received events, without waiting for more. */
    public void receive() throws IOException {
        try {
            connection.receive();
        } finally {
            dispatchEvents();
        }
        acknowledgeMoves();
    }

    /** Registers the connection for reads with a selector. */
    public SelectionKey register(Selector selector, Object attachment) throws IOException {
        return connection.register(selector, attachment);
    }

    private Message ask(Message question, BooleanSupplier answered, String what)
            throws IOException {
        answer = null;
        try {
            connection.send(question);
            connection.waits().await(answered, what);
        } finally {
            dispatchEvents();
        }
        Message found = answer;
        acknowledgeMoves();
        return found;
    }

    /** Dispatches received events, also those of a connection that is lost now. */
    private void dispatchEvents() {
        for (Message next = received.poll(); next != null; next = received.poll()) {
            if (next instanceof Message.OutputsLost lost) {
                events.lost(lost);
            } else if (next instanceof Message.OutputsHeld held) {
                events.held(held);
            } else if (next instanceof Message.OutputsRemote remote) {
                events.remote(remote);
            } else if (next instanceof Message.MemberReport report) {
                events.member(report);
            } else if (next instanceof Message.OutputsMoved moved) {
                events.moved(moved);
                unacknowledged.add(new Message.MoveNoted(moved.move()));
            }
        }
    }

    /** Acknowledges dispatched moves. */
    private void acknowledgeMoves() throws IOException {
        while (!unacknowledged.isEmpty()) {
            connection.send(unacknowledged.remove());
            try {
                connection.flush();
            } finally {
                dispatchEvents();
            }
        }
    }

    @Override
    public void close() {
        connection.close();
    }

    private final class Handler extends RoleHandler {
        private final Endpoint endpoint;

        Handler(Endpoint endpoint) {
            super("on a driver connection");
            this.endpoint = endpoint;
        }

        @Override
        public void onMessage(Message message) throws IOException {
            if (message instanceof Message.ErrorResponse response) {
                throw new ClientException.Remote(endpoint.toString(), response);
            }
            if (message instanceof Message.OutputsLost
                    || message instanceof Message.OutputsHeld
                    || message instanceof Message.OutputsRemote
                    || message instanceof Message.OutputsMoved
                    || message instanceof Message.MemberReport) {
                received.add(message);
            } else {
                answer = message;
            }
        }
    }
}
