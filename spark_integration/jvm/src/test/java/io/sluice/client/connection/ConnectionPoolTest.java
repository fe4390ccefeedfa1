package io.sluice.client.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.support.PlayedDaemon;
import io.sluice.client.support.ShuffleTestCase;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Message;
import java.io.IOException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Leases of connections. */
@Timeout(60)
class ConnectionPoolTest extends ShuffleTestCase {
    @Test
    void aRefusedConnectionNamesTheSetting() throws IOException {
        Endpoint gone = daemon.endpoint();
        daemon.close();
        ClientException.ConnectFailed error =
                assertThrows(
                        ClientException.ConnectFailed.class,
                        () -> pool.lease(gone, Message.ROLE_DRIVER));
        assertTrue(error.getMessage().contains("spark.sluice.endpoints"), error.getMessage());
        assertThrows(
                ClientException.ConnectFailed.class,
                () ->
                        pool.lease(
                                new Endpoint("/nonexistent/socket", null, 0), Message.ROLE_DRIVER));
    }

    private static Message.ErrorResponse late(Long channel) {
        return new Message.ErrorResponse(
                channel,
                ErrorCode.DEADLINE_EXCEEDED.number(),
                1,
                true,
                "The connection holds nothing",
                "3 pings",
                "600 s",
                null);
    }

    @Test
    void aConnectionThatWasClosedWhileItWasIdleIsNotLeasedAgain() throws Exception {
        try (PlayedDaemon played = new PlayedDaemon()) {
            TaskManagerConnection idle = played.connect(options(), Message.ROLE_PRODUCER);
            assertTrue(idle.isReusable());
            pool.release(idle);
            played.send(late(null));
            while (idle.isReusable()) {
                Thread.onSpinWait(); // until the error has come; the test has a deadline
            }
            TaskManagerConnection[] leased = new TaskManagerConnection[1];
            played.accepting(
                    () -> leased[0] = pool.lease(played.endpoint(), Message.ROLE_PRODUCER));
            assertNotSame(idle, leased[0]);
            assertTrue(leased[0].isReusable());
            leased[0].close();
        }
    }

    @Test
    void onlyAnErrorOfTheWholeConnectionMeansThatItWasIdle() {
        assertTrue(
                ClientException.isLostConnection(new ClientException.Remote("here", late(null))));
        assertFalse(ClientException.isLostConnection(new ClientException.Remote("here", late(3L))));
    }

    @Test
    void eachProcessMayHaveAsManyIdleConnections() throws IOException {
        pool = new ConnectionPool(options(), 1);
        assertEquals(1, idleAfterTwo());
        pool.close();
        pool = new ConnectionPool(options(), 1);
        daemon.processes = 2;
        assertEquals(2, idleAfterTwo());
    }

    private int idleAfterTwo() throws IOException {
        TaskManagerConnection first = pool.lease(daemon.endpoint(), Message.ROLE_PRODUCER);
        TaskManagerConnection second = pool.lease(daemon.endpoint(), Message.ROLE_PRODUCER);
        pool.release(first);
        pool.release(second);
        return pool.idleConnections();
    }

    @Test
    void aProcessBeyondTheirNumberIsRefused() {
        daemon.process = 2;
        daemon.processes = 2;
        assertThrows(
                ClientException.ConnectFailed.class,
                () -> pool.lease(daemon.endpoint(), Message.ROLE_PRODUCER));
    }
}
