package io.sluice.client;

import java.io.IOException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

/**
 * Speaks the driver leg: keeps an application alive on one TaskManager and releases its data. Not
 * thread safe.
 */
public final class DriverClient implements AutoCloseable {
    private final TaskManagerConnection connection;
    private final Consumer<Message.OutputsLost> lost;
    private long sentNonce;
    private Message answer;

    /**
     * Connects as a driver.
     *
     * @param lost called with the map outputs that the TaskManager has lost, by the thread that
     *     uses this client
     * @throws ClientException.ConnectFailed if no TaskManager answers there
     */
    public DriverClient(
            Endpoint endpoint, ClientOptions options, Consumer<Message.OutputsLost> lost)
            throws ClientException {
        this.lost = lost;
        connection = TaskManagerConnection.connect(endpoint, options, Message.ROLE_DRIVER);
        connection.setHandler(new Handler());
    }

    public Message.HelloAck taskManager() {
        return connection.taskManager();
    }

    /** Pings the TaskManager; returns when the answer has arrived. */
    public void ping() throws IOException {
        sentNonce++;
        ask(
                new Message.Ping(sentNonce),
                () -> answer instanceof Message.Pong pong && pong.nonce() == sentNonce,
                "a pong");
    }

    /** Releases a shuffle's data; returns the number of bytes freed. */
    public long releaseShuffle(int shuffleId) throws IOException {
        ask(
                new Message.ReleaseShuffle(shuffleId),
                () ->
                        answer instanceof Message.ShuffleReleased released
                                && released.shuffleId() == shuffleId,
                "the release of a shuffle");
        return ((Message.ShuffleReleased) answer).freedBytes();
    }

    /** Releases all data of the application; returns the number of bytes freed. */
    public long releaseApplication() throws IOException {
        ask(
                new Message.ReleaseApplication(),
                () -> answer instanceof Message.ApplicationReleased,
                "the release of the application");
        return ((Message.ApplicationReleased) answer).freedBytes();
    }

    /** Takes what the TaskManager has said of its own accord, without waiting. */
    public void receive() throws IOException {
        connection.receive();
    }

    /** Returns a key of a selector that tells when the TaskManager says something. */
    public SelectionKey register(Selector selector, Object attachment) throws IOException {
        return connection.register(selector, attachment);
    }

    private void ask(Message question, BooleanSupplier answered, String what) throws IOException {
        answer = null;
        connection.send(question);
        connection.waits().await(answered, what);
    }

    @Override
    public void close() {
        connection.close();
    }

    private final class Handler extends RoleHandler {
        Handler() {
            super("on a driver connection");
        }

        @Override
        public void onMessage(Message message) throws IOException {
            if (message instanceof Message.ErrorResponse response) {
                throw new ClientException.Remote(connection.endpoint().toString(), response);
            }
            if (message instanceof Message.OutputsLost outputs) {
                lost.accept(outputs);
            } else {
                answer = message;
            }
        }
    }
}
