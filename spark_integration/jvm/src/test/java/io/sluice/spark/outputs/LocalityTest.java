package io.sluice.spark.outputs;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.DataProcesses;
import io.sluice.spark.common.DriverMessages;
import io.sluice.spark.settings.SluiceSettings.LocalityMode;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class LocalityTest {
    private int hidden;
    private Locality locality;

    private static DriverMessages.Reached reached(String executorId, String id, String ownHost) {
        return reached(executorId, id, 0, ownHost);
    }

    private static DriverMessages.Reached reached(
            String executorId, String id, int process, String ownHost) {
        DataProcesses taskManager = new DataProcesses("of-" + id.charAt(3), 7337, 2);
        return new DriverMessages.Reached(executorId, id, taskManager, process, ownHost);
    }

    @BeforeEach
    void makeAuto() {
        locality = new Locality(LocalityMode.AUTO, () -> hidden++);
    }

    @Test
    void hostsArePreferredIfEachExecutorHasATaskManager() {
        locality.reached(reached("0", "tm-a", "a"));
        locality.reached(reached("1", "tm-b", "b"));
        assertTrue(locality.prefersHosts());
        assertEquals("b", locality.hostOf("tm-b", 0));
        assertNull(locality.hostOf("tm-c", 0));
        assertEquals(0, hidden);
    }

    @Test
    void oneExecutorWithoutATaskManagerEndsThePreference() {
        locality.reached(reached("0", "tm-a", "a"));
        locality.reached(reached("1", "tm-a", null));
        assertFalse(locality.prefersHosts());
        assertTrue(locality.hidesHosts());
        assertNull(locality.hostOf("tm-a", 0));
        locality.reached(reached("2", "tm-a", null));
        assertEquals(1, hidden);
    }

    @Test
    void thePreferenceReturnsWhenThatExecutorIsGone() {
        locality.reached(reached("0", "tm-a", "a"));
        locality.reached(reached("1", "tm-a", null));
        locality.executorRemoved("1");
        assertTrue(locality.prefersHosts());
        locality.reached(reached("2", "tm-a", null));
        assertEquals(2, hidden);
    }

    @Test
    void anExecutorWithoutAReportHidesNothingThatIsNamed() {
        locality.reached(reached("0", "tm-a", "a"));
        locality.executorAdded("1");
        assertFalse(locality.prefersHosts());
        assertFalse(locality.hidesHosts());
        locality.reached(reached("1", "tm-b", "b"));
        assertTrue(locality.prefersHosts());
        assertEquals(0, hidden);
    }

    @Test
    void aReportBeforeTheExecutorsStartIsKept() {
        locality.reached(reached("0", "tm-a", "a"));
        locality.executorAdded("0");
        assertTrue(locality.prefersHosts());
    }

    @Test
    void outputsOfEachProcessNameTheirHost() {
        locality.reached(reached("0", "tm-a0", 0, "a"));
        locality.reached(reached("0", "tm-a1", 1, "a"));
        assertEquals("a", locality.hostOf("tm-a0", 0));
        assertEquals("a", locality.hostOf("tm-a1", 0));
        locality.reached(reached("0", "tm-b", "b"));
        assertNull(locality.hostOf("tm-a0", 0), "the executor uses another TaskManager now");
        assertEquals("b", locality.hostOf("tm-b", 0));
    }

    @Test
    void executorsOfOneNodeShareItsOutputs() {
        locality.reached(reached("0", "tm-a", "pod-1"));
        locality.reached(reached("1", "tm-a", "pod-2"));
        assertEquals("pod-1", locality.hostOf("tm-a", 6));
        assertEquals("pod-2", locality.hostOf("tm-a", 7));
    }

    @Test
    void noExecutorIsNoReasonToPreferHosts() {
        assertFalse(locality.prefersHosts());
    }

    @Test
    void theSettingDecidesOtherwise() {
        Locality always = new Locality(LocalityMode.ALWAYS, () -> hidden++);
        always.reached(reached("0", "tm-a", "a"));
        always.reached(reached("1", "tm-a", null));
        assertEquals("a", always.hostOf("tm-a", 0));
        Locality never = new Locality(LocalityMode.NEVER, () -> hidden++);
        never.reached(reached("0", "tm-a", "a"));
        assertFalse(never.prefersHosts());
        assertEquals(0, hidden);
    }
}
