package io.sluice.spark.outputs;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class ExecutorOutputsTest {
    private static final int SLUICE = 7;
    private static final int SPARK = 8;

    private final List<String> forgotten = new ArrayList<>();
    private final List<Integer> released = new ArrayList<>();
    private final ExecutorOutputs outputs =
            new ExecutorOutputs(
                    shuffleId -> shuffleId == SLUICE,
                    executorId -> {
                        forgotten.add(executorId);
                        return forgotten.size();
                    },
                    released::add);

    private void start(int jobId, Map<Integer, Integer> shuffles) {
        outputs.jobStarted(jobId, new HashMap<>(shuffles));
    }

    @Test
    void aLostExecutorLosesItsOutputs() {
        outputs.executorLost("3");
        assertEquals(List.of("3"), forgotten);
    }

    @Test
    void onlyMapTasksThatWriteThroughSluiceHoldNoExecutor() {
        start(1, Map.of(10, SLUICE, 11, SPARK));
        for (int stageId = 10; stageId <= 12; stageId++) {
            outputs.taskSucceeded(stageId);
        }
        assertEquals(List.of(SLUICE), released);
    }

    @Test
    void eachMapTaskReleasesItsExecutorUntilItsJobEnds() {
        start(1, Map.of(10, SLUICE));
        start(2, Map.of(11, SLUICE));
        outputs.taskSucceeded(10);
        outputs.taskSucceeded(10);
        assertEquals(List.of(SLUICE, SLUICE), released);
        outputs.jobEnded(1);
        outputs.taskSucceeded(10);
        assertEquals(List.of(SLUICE, SLUICE), released, "the job has ended");
        outputs.taskSucceeded(11);
        assertEquals(List.of(SLUICE, SLUICE, SLUICE), released, "the other job has not");
    }
}
