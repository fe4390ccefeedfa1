package io.sluice.spark;

import java.util.function.UnaryOperator;

/**
 * How many tasks an executor runs at a time. Spark tells its cores to nobody, so they are derived
 * from what they are given by: a host of many processors has many small executors.
 */
final class TaskSlots {
    private TaskSlots() {}

    /**
     * @param setting the value of one of Spark's settings, or null
     * @param processors those of the host, which an executor has where nothing else is said: in
     *     local mode, and in standalone mode all that its worker has
     */
    static int of(UnaryOperator<String> setting, int processors) {
        String master = setting.apply("spark.master");
        int cores = processors;
        if (master != null && !master.equals("local") && !master.startsWith("local[")) {
            boolean oneUnlessSaid = master.startsWith("yarn") || master.startsWith("k8s");
            cores = number(setting, "spark.executor.cores", oneUnlessSaid ? 1 : processors);
        }
        return Math.max(1, cores / number(setting, "spark.task.cpus", 1));
    }

    private static int number(UnaryOperator<String> setting, String key, int otherwise) {
        String value = setting.apply(key);
        return value == null ? otherwise : Math.max(1, Integer.parseInt(value.trim()));
    }
}
