package io.sluice.spark.executor;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.common.SluiceMetrics;
import io.sluice.spark.driver.ApplicationCounters;
import java.io.IOException;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Checks that the executors' reports add up on the driver, whatever is lost on the way. */
@Timeout(60)
class CounterReporterTest {
    private final LinkedBlockingQueue<String[]> sent = new LinkedBlockingQueue<>();
    private final SluiceMetrics executor = new SluiceMetrics();
    private final SluiceMetrics driver = new SluiceMetrics();
    private final ApplicationCounters application = new ApplicationCounters(driver);

    @Test
    void reportsAddUp() throws InterruptedException {
        driver.refetches.add(1);
        CounterReporter reporter = new CounterReporter(executor, sent::add);
        executor.bytesWritten.add(100);
        for (int task = 0; task < 50; task++) {
            reporter.taskEnded();
        }
        String[] first = sent.poll(30, TimeUnit.SECONDS);
        assertNotNull(first, "sent by itself");
        assertEquals(DriverMessages.COUNTERS, first[0]);
        application.add(first, 1);
        assertEquals(100, application.sum("bytesWritten"));
        assertTrue(sent.isEmpty(), "fifty tasks, one message");
        executor.bytesWritten.add(5);
        executor.refetches.add(2);
        reporter.close();
        application.add(sent.remove(), 1);
        assertEquals(105, application.sums().get("bytesWritten"));
        assertEquals(3, application.sum("refetches"));
        reporter.taskEnded();
        assertTrue(sent.isEmpty());
    }

    @Test
    void unsentCountsAreSentTheNextTime() {
        AtomicInteger calls = new AtomicInteger();
        CounterReporter.Sender sender =
                message -> {
                    if (calls.getAndIncrement() == 0) {
                        throw new IOException("the driver is busy");
                    }
                    sent.add(message);
                };
        executor.bytesWritten.add(7);
        CounterReporter reporter = new CounterReporter(executor, sender);
        reporter.close();
        reporter.close();
        reporter.close();
        assertEquals(2, calls.get(), "nothing new, nothing sent");
        application.add(sent.remove(), 1);
        assertEquals(7, application.sum("bytesWritten"));
    }

    @Test
    void waitsForCreditAddUpByStage() {
        AtomicInteger calls = new AtomicInteger();
        CounterReporter.Sender sender =
                message -> {
                    if (calls.getAndIncrement() == 0) {
                        throw new IOException("the driver is busy");
                    }
                    sent.add(message);
                };
        CounterReporter reporter = new CounterReporter(executor, sender);
        executor.creditWaits().add(3, 10);
        reporter.close();
        executor.creditWaits().add(3, 5);
        executor.creditWaits().add(4, 1);
        reporter.close();
        reporter.close();
        assertEquals(2, calls.get(), "nothing new, nothing sent");
        driver.creditWaits().add(4, 100);
        String[] message = sent.remove();
        assertEquals(DriverMessages.CREDIT_WAITS, message[0]);
        application.addCreditWaits(DriverMessages.readCreditWaits(message));
        assertEquals(Map.of(3, 15L, 4, 101L), application.creditWaitNanos());
    }

    @Test
    void anUnknownCounterIsRefused() {
        assertThrows(
                IllegalArgumentException.class,
                () -> application.add(new String[] {"counters", "none", "1"}, 1));
    }
}
