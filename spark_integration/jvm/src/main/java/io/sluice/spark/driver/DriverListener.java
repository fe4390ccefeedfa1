package io.sluice.spark.driver;

import io.sluice.client.connection.DriverClient;
import io.sluice.spark.common.DaemonThreads;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.CancelledKeyException;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Waits, with one thread, for events of all TaskManagers. Thread safe. */
final class DriverListener implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(DriverListener.class);

    private final Executor threads;
    private final Selector selector;

    /**
     * @param threads call {@link DriverLink#receive}
     */
    DriverListener(Executor threads) {
        this.threads = threads;
        try {
            this.selector = Selector.open();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        DaemonThreads.named("sluice-driver-listener").newThread(this::run).start();
    }

    /** Listens to a client of a link until the client is closed. */
    void listen(DriverClient client, DriverLink link) throws IOException {
        try {
            SelectionKey unused = client.register(selector, link);
        } catch (ClosedSelectorException e) {
            LOG.debug("the listener of the links is closed", e);
        }
        selector.wakeup();
    }

    /** Releases the sockets of closed clients. */
    void closed() {
        selector.wakeup();
    }

    private void run() {
        try {
            while (selector.isOpen()) {
                selector.select(this::received);
            }
        } catch (ClosedSelectorException e) {
            LOG.debug("the listener of the links has ended", e);
        } catch (IOException e) {
            LOG.warn("Listening failed: lost map outputs will be noticed later", e);
        }
    }

    private void received(SelectionKey key) {
        try {
            key.interestOps(0); // until the link has read what is there
            threads.execute(() -> receive(key));
        } catch (CancelledKeyException | RejectedExecutionException e) {
            LOG.debug("a link has ended", e);
        }
    }

    private void receive(SelectionKey key) {
        ((DriverLink) key.attachment())
                .receive(
                        () -> {
                            try {
                                key.interestOps(SelectionKey.OP_READ);
                                selector.wakeup();
                            } catch (CancelledKeyException e) {
                                LOG.debug("a link has ended", e);
                            }
                        });
    }

    @Override
    public void close() {
        try {
            selector.close();
        } catch (IOException e) {
            LOG.debug("the listener of the links cannot be closed", e);
        }
    }
}
