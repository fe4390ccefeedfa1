package io.sluice.client.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.support.MockDaemon;
import io.sluice.client.tls.Tls;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.nio.channels.Selector;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class DriverClientTest {
    private static final ClientOptions OPTIONS =
            new ClientOptions("app-1", "driver", 10_000, 10_000, new ChunkPool(1), Tls.OFF, null);
    private static final Message.OutputsLost LOST =
            new Message.OutputsLost(3, List.of(0L, 17L, 1L << 40));

    private static final Message.OutputsHeld HELD = new Message.OutputsHeld(3, List.of(4L));
    private static final Message.OutputsMoved MOVED =
            new Message.OutputsMoved(9, 3, "tm-b", "host-b", 7337, List.of(5L, 6L));

    private final List<Message> heard = new ArrayList<>();
    private final OutputEvents events =
            new OutputEvents() {
                @Override
                public void lost(Message.OutputsLost outputs) {
                    heard.add(outputs);
                }

                @Override
                public void held(Message.OutputsHeld outputs) {
                    heard.add(outputs);
                }

                @Override
                public void moved(Message.OutputsMoved outputs) {
                    heard.add(outputs);
                }
            };

    @Test
    void newsAreToldDuringAnExchangeAndBetweenTwo() throws Exception {
        try (MockDaemon daemon = new MockDaemon();
                DriverClient driver = new DriverClient(daemon.endpoint(), OPTIONS, events);
                Selector selector = Selector.open()) {
            daemon.answersPings = true;
            daemon.news = List.of(LOST, HELD);
            driver.register(selector, this);
            driver.ping();
            while (heard.size() < 4) {
                selector.select(key -> assertEquals(this, key.attachment()));
                driver.receive();
            }
            daemon.news = List.of();
            driver.ping();
        }
        assertEquals(List.of(LOST, HELD, LOST, HELD), heard);
    }

    @Test
    void newsThatArriveWithTheHandshakeAreTold() throws Exception {
        try (MockDaemon daemon = new MockDaemon()) {
            daemon.answersPings = true;
            daemon.newsAtConnect = List.of(HELD, MOVED);
            try (DriverClient driver = new DriverClient(daemon.endpoint(), OPTIONS, events)) {
                driver.ping();
            }
        }
        assertEquals(List.of(HELD, MOVED), heard);
    }

    @Test
    void aMoveIsNotedAfterItWasTold() throws Exception {
        try (MockDaemon daemon = new MockDaemon();
                DriverClient driver = new DriverClient(daemon.endpoint(), OPTIONS, events)) {
            daemon.answersPings = true;
            daemon.newsAtPing = List.of(MOVED);
            driver.ping();
            assertEquals(List.of(MOVED), heard);
            driver.ping();
            assertTrue(daemon.received.contains(new Message.MoveNoted(9)));
        }
    }

    @Test
    void newsBeforeTheEndOfAConnectionAreTold() throws Exception {
        try (MockDaemon daemon = new MockDaemon();
                DriverClient driver = new DriverClient(daemon.endpoint(), OPTIONS, events)) {
            daemon.answersPings = true;
            daemon.newsAtPing = List.of(HELD);
            daemon.cut.set(Message.Ping.class::isInstance);
            daemon.cutAfter = true;
            daemon.tellsBeforeCut = true;
            assertThrows(IOException.class, driver::ping);
            assertEquals(List.of(HELD), heard);
        }
    }

    @Test
    void anEndBetweenTwoExchangesIsNoticed() throws Exception {
        try (MockDaemon daemon = new MockDaemon();
                DriverClient driver = new DriverClient(daemon.endpoint(), OPTIONS, events);
                Selector selector = Selector.open()) {
            daemon.answersPings = true;
            driver.ping();
            driver.register(selector, this);
            daemon.close();
            selector.select(key -> {});
            assertThrows(IOException.class, driver::receive);
        }
    }
}
