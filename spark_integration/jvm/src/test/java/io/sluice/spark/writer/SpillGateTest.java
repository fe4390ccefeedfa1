package io.sluice.spark.writer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.ClientException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Checks that records and spills exclude each other. */
@Timeout(60)
class SpillGateTest {
    private final SpillGate gate = new SpillGate();

    @Test
    void noSpillBeginsWhileARecordIsStored() throws Exception {
        gate.beginRecord();
        assertFalse(
                gate.tryBeginSpill(), "on the same thread, as when the record itself needs memory");
        gate.endRecord();
        assertTrue(gate.tryBeginSpill());
        assertFalse(gate.tryBeginSpill(), "inside of a spill");
        gate.endSpill();
        gate.beginRecord();
        gate.endRecord();
    }

    @Test
    void aRecordWaitsForTheSpillOfAnotherThread() throws Exception {
        assertTrue(gate.tryBeginSpill());
        FutureTask<Void> task =
                new FutureTask<>(
                        () -> {
                            gate.beginRecord();
                            gate.endRecord();
                            return null;
                        });
        Thread thread = start(task);
        awaitWaiting(thread);
        assertFalse(task.isDone());
        gate.endSpill();
        task.get();
    }

    @Test
    void anInterruptEndsTheWaitExceptAtTheEndOfTheTask() throws Exception {
        CountDownLatch refused = new CountDownLatch(1);
        assertTrue(gate.tryBeginSpill());
        FutureTask<Boolean> task =
                new FutureTask<>(
                        () -> {
                            assertThrows(ClientException.Interrupted.class, gate::beginRecord);
                            refused.countDown();
                            gate.beginEnd();
                            return Thread.interrupted();
                        });
        Thread thread = start(task);
        awaitWaiting(thread);
        thread.interrupt();
        refused.await();
        gate.endSpill();
        assertTrue(task.get(), "the interrupt is left for the task");
        assertFalse(gate.tryBeginSpill(), "the end keeps spills out");
    }

    @Test
    void recordsAndSpillsExcludeEachOther() throws Exception {
        int records = 200_000;
        int[] shared = {0};
        CountDownLatch begun = new CountDownLatch(1);
        FutureTask<Integer> spills =
                new FutureTask<>(
                        () -> {
                            int done = 0;
                            begun.countDown();
                            while (done < 1000) {
                                if (gate.tryBeginSpill()) {
                                    shared[0]++;
                                    done++;
                                    gate.endSpill();
                                }
                                Thread.onSpinWait();
                            }
                            return done;
                        });
        start(spills);
        begun.await();
        for (int i = 0; i < records; i++) {
            gate.beginRecord();
            shared[0]++;
            gate.endRecord();
        }
        assertEquals(1000, spills.get());
        assertEquals(records + 1000, shared[0]);
    }

    private static Thread start(Runnable task) {
        Thread thread = new Thread(task, "spill-gate-test");
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void awaitWaiting(Thread thread) {
        while (thread.getState() != Thread.State.WAITING) {
            Thread.onSpinWait();
        }
    }
}
