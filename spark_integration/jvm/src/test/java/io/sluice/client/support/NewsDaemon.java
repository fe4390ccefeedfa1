package io.sluice.client.support;

import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;

/** A mock daemon for the tests of the driver's links, which are outside of this package. */
public final class NewsDaemon implements AutoCloseable {
    private final MockDaemon daemon;

    public NewsDaemon(String id) throws IOException {
        this(id, "127.0.0.1", 0);
    }

    /** Makes a daemon at an address of this host. */
    public NewsDaemon(String id, String host, int port) throws IOException {
        daemon = new MockDaemon(host, port);
        daemon.id = id;
        daemon.answersPings = true;
    }

    public Endpoint endpoint() {
        return daemon.endpoint();
    }

    /** Tells a driver something with the next sign of life. */
    public void tell(Message... news) {
        daemon.newsAtPing = List.of(news);
    }

    /** Returns the TaskManagers, moves and errors that drivers have told, as they come. */
    public BlockingQueue<Message> told() {
        return daemon.told;
    }

    /** Gives it an instance id. */
    public NewsDaemon ofInstance(String instanceId) {
        daemon.instanceId = instanceId;
        return this;
    }

    /** Makes it report these map outputs as lost when they are checked. */
    public void loses(Long... mapAttemptIds) {
        daemon.lacks = Set.of(mapAttemptIds);
    }

    /** Answers only Hello from now on. */
    public NewsDaemon hangs() {
        daemon.answersPings = false;
        return this;
    }

    /** Gives it another id for later connections. */
    public void becomes(String id) {
        daemon.id = id;
    }

    /** Ends all connections; new ones are accepted. */
    public void resetConnections() {
        daemon.resetConnections();
    }

    @Override
    public void close() throws IOException {
        daemon.close();
    }
}
