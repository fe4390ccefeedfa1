package io.sluice.spark.executor;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class TaskSlotsTest {
    private static final int PROCESSORS = 64;

    @ParameterizedTest
    @CsvSource({
        "spark://host:7077,,,64",
        "spark://host:7077,4,,4",
        "spark://host:7077,4,2,2",
        "spark://host:7077,1,2,1",
        "yarn,,,1",
        "yarn,5,,5",
        "k8s://https://host,,,1",
        "k8s://https://host,6,4,1",
        "local,,,64",
        "local[*],4,,64",
        "'local-cluster[2,1,768]',1,,1",
    })
    void tasksAreTheExecutorsCoresDividedByThoseOfATask(
            String master, String cores, String taskCpus, int slots) {
        Map<String, String> settings = new HashMap<>();
        settings.put("spark.master", master);
        settings.put("spark.executor.cores", cores);
        settings.put("spark.task.cpus", taskCpus);
        assertEquals(slots, TaskSlots.of(settings::get, PROCESSORS));
    }
}
