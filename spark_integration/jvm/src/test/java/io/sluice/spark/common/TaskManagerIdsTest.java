package io.sluice.spark.common;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.failover.TaskManagerAddress;
import io.sluice.spark.common.TaskManagerIds.Hosts;
import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.api.Test;

class TaskManagerIdsTest {
    private static final TaskManagerAddress PLACE =
            new TaskManagerAddress("tm 1", "10.0.0.1", 7337);

    @Test
    void aLocationKeepsWhereItsTaskManagerListens() {
        for (String preferred : new String[] {"10.0.0.1", "pod-7", null}) {
            Hosts hosts = Hosts.of(PLACE, preferred, 5);
            assertEquals("10.0.0.1", hosts.ofTaskManager());
            assertEquals(preferred != null, hosts.isPreferred());
        }
    }

    @Test
    void theSchedulerSeesThePreferredHost() {
        assertEquals("pod-7", Hosts.of(PLACE, "pod-7", 5).host());
    }

    @Test
    void aLocationWithoutAPreferredHostNamesAHostThatCannotExist() {
        assertEquals("sluice-tm-1.invalid", Hosts.of(PLACE, null, 5).host());
    }

    @Test
    void noLocationWithoutAHostHasAFifthOfManyMapOutputs() {
        Set<Hosts> locations = new HashSet<>();
        for (long attempt = 0; attempt < 100; attempt++) {
            locations.add(Hosts.of(PLACE, null, attempt));
        }
        assertTrue(locations.size() > 5, "there are " + locations.size());
    }
}
