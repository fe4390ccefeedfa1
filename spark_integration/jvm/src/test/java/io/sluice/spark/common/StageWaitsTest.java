package io.sluice.spark.common;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import org.junit.jupiter.api.Test;

/** Checks the sums of waits by stage. */
class StageWaitsTest {
    private final StageWaits waits = new StageWaits();

    @Test
    void waitsAddUpUntilTheyAreTaken() {
        waits.add(1, 5);
        waits.add(2, 0);
        waits.addAll(Map.of(1, 2L, 3, 4L));
        assertEquals(Map.of(1, 7L, 3, 4L), waits.sums());
        assertEquals(Map.of(1, 7L, 3, 4L), waits.take());
        assertEquals(Map.of(), waits.sums());
    }

    @Test
    void theOldestStagesAreForgotten() {
        for (int stageId = 0; stageId <= StageWaits.MAX_STAGES; stageId++) {
            waits.add(stageId, 1);
        }
        assertEquals(StageWaits.MAX_STAGES, waits.sums().size());
        assertEquals(null, waits.sums().get(0));
    }
}
