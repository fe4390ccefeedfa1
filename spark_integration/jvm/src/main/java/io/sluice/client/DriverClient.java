package io.sluice.client;

import java.io.IOException;
import java.util.function.BooleanSupplier;

/**
 * Speaks the driver leg: keeps an application alive on one TaskManager and releases its data. Not
 * thread safe.
 */
public final class DriverClient implements AutoCloseable {
    private final TaskManagerConnection connection;
    private long sentNonce;
    private Message answer;

    /**
     * Connects as a driver.
     *
     * @throws ClientException.ConnectFailed if no TaskManager answers there
     */
    public DriverClient(Endpoint endpoint, ClientOptions options) throws ClientException {
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
            answer = message;
        }
    }
}
