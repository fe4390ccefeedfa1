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
 * Speaks the driver leg: keeps an application alive on one TaskManager, releases its data, and
 * hears where its map outputs are. Not thread safe.
 */
public final class DriverClient implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(DriverClient.class);

    /** Says in an ErrorResponse that the side that receives it is at fault. */
    private static final int REMOTE_FAULT = 2;

    private final TaskManagerConnection connection;
    private final OutputEvents events;

    /**
     * News that arrived during an exchange; they are told after it, because an answer to them
     * cannot be sent while frames are dispatched.
     */
    private final Queue<Message> news = new ArrayDeque<>();

    private final Queue<Message.MoveNoted> toNote = new ArrayDeque<>();
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

    /** Tells the TaskManager why it is not used, and closes the connection. */
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
            LOG.debug("{} does not hear why it is refused", connection.endpoint(), e);
        } finally {
            close();
        }
    }

    /** Returns whether the TaskManager makes copies of map outputs and takes those of others. */
    public boolean hasCopies() {
        return connection.has(Frames.FEATURE_COPIES);
    }

    /** Names another TaskManager of the application; sent with the next message. */
    public void tell(Message.KnownTaskManager other) throws IOException {
        connection.send(other);
    }

    /** Sends everything buffered. */
    public void flush() throws IOException {
        try {
            connection.flush();
        } finally {
            tell();
        }
        note();
    }

    /** Pings the TaskManager; returns when the answer has arrived. */
    public void ping() throws IOException {
        sentNonce++;
        ask(
                new Message.Ping(sentNonce),
                () -> answer instanceof Message.Pong pong && pong.nonce() == sentNonce,
                "a pong");
    }

    /** Returns whether a release can have an upper bound of map attempts. */
    public boolean hasBoundedReleases() {
        return connection.has(Frames.FEATURE_BOUNDED_RELEASES);
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

    /** Returns whether the TaskManager can report which map outputs it does not have. */
    public boolean hasChecks() {
        return connection.has(Frames.FEATURE_CHECKED_OUTPUTS)
                && connection.has(Frames.FEATURE_LOST_OUTPUTS);
    }

    /** Makes the TaskManager report as lost those of these map outputs that it does not have. */
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

    /** Takes what the TaskManager has said of its own accord, without waiting for more. */
    public void receive() throws IOException {
        try {
            connection.receive();
        } finally {
            tell();
        }
        note();
    }

    /** Returns a key of a selector that tells when the TaskManager says something. */
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
            tell();
        }
        Message found = answer;
        note();
        return found;
    }

    /** Tells the news so far, those that a connection brought before it was lost included. */
    private void tell() {
        for (Message next = news.poll(); next != null; next = news.poll()) {
            if (next instanceof Message.OutputsLost lost) {
                events.lost(lost);
            } else if (next instanceof Message.OutputsHeld held) {
                events.held(held);
            } else if (next instanceof Message.OutputsMoved moved) {
                events.moved(moved);
                toNote.add(new Message.MoveNoted(moved.move()));
            }
        }
    }

    /** Answers the moves that have been told. */
    private void note() throws IOException {
        while (!toNote.isEmpty()) {
            connection.send(toNote.remove());
            try {
                connection.flush();
            } finally {
                tell();
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
                    || message instanceof Message.OutputsMoved) {
                news.add(message);
            } else {
                answer = message;
            }
        }
    }
}
