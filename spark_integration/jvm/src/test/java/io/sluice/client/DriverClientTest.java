package io.sluice.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

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

    @Test
    void lostMapOutputsAreToldDuringAnExchangeAndBetweenTwo() throws Exception {
        List<Message.OutputsLost> lost = new ArrayList<>();
        try (MockDaemon daemon = new MockDaemon();
                DriverClient driver = new DriverClient(daemon.endpoint(), OPTIONS, lost::add);
                Selector selector = Selector.open()) {
            daemon.answersPings = true;
            daemon.lost = LOST;
            driver.register(selector, this);
            driver.ping();
            while (lost.size() < 2) {
                selector.select(key -> assertEquals(this, key.attachment()));
                driver.receive();
            }
            daemon.lost = null;
            driver.ping();
        }
        assertEquals(List.of(LOST, LOST), lost);
    }

    @Test
    void anEndBetweenTwoExchangesIsNoticed() throws Exception {
        try (MockDaemon daemon = new MockDaemon();
                DriverClient driver = new DriverClient(daemon.endpoint(), OPTIONS, lost -> {});
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
