package io.sluice.spark.common;

import io.sluice.spark.settings.SluiceSettings;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.storage.BlockManagerId;
import org.apache.spark.util.collection.ExternalSorter;
import scala.Option;

/** Calls the parts of Spark that differ between 3.5 and 4.3, by reflection. */
public final class Compat {
    private static final Constructor<?> SORTER = sorterConstructor();
    private static final Method MAP_STATUS = mapStatusMethod();
    private static final Method DEPENDENCIES = method(RDD.class, "dependencies");
    private static final Method STAGE_INFOS = method(SparkListenerJobStart.class, "stageInfos");
    private static final boolean ROW_CHECKSUMS =
            method(ShuffleDependency.class, "rowBasedChecksums") != null;

    private Compat() {}

    /** Throws on a line of Spark that this jar does not support. */
    public static void check() {
        require(SORTER, "constructor of ExternalSorter");
        require(MAP_STATUS, "MapStatus.apply");
        require(DEPENDENCIES, "RDD.dependencies");
        require(STAGE_INFOS, "SparkListenerJobStart.stageInfos");
    }

    private static void require(Object found, String name) {
        if (found == null) {
            throw new IllegalStateException(
                    String.format(
                            "Spark %s is not supported by this sluice-spark.jar, which supports 3.5"
                                    + " to 4.3: its %s differs",
                            org.apache.spark.package$.MODULE$.SPARK_VERSION(), name));
        }
    }

    /** Throws on lines of Spark without pipelined shuffles. */
    public static void requirePipelinedShuffles() {
        try {
            Class.forName(
                    "org.apache.spark.shuffle.PipelinedShuffleManager",
                    false,
                    ExternalSorter.class.getClassLoader());
        } catch (ClassNotFoundException e) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s is true: Spark %s has no pipelined shuffles, 4.3 is the first line"
                                    + " that has; remove the setting",
                            SluiceSettings.PIPELINED,
                            org.apache.spark.package$.MODULE$.SPARK_VERSION()),
                    e);
        }
    }

    private static Method method(Class<?> type, String name) {
        for (Method method : type.getMethods()) {
            if (method.getName().equals(name)) {
                return method;
            }
        }
        return null;
    }

    private static Method mapStatusMethod() {
        for (Method method : MapStatus.class.getMethods()) {
            int parameters = method.getParameterCount();
            if (method.getName().equals("apply") && (parameters == 3 || parameters == 4)) {
                return method;
            }
        }
        return null;
    }

    /** Makes a map status, from 4.1 on with the checksum of the rows. */
    public static MapStatus mapStatus(
            BlockManagerId location, long[] lengths, long mapId, long rowChecksum) {
        try {
            return (MapStatus)
                    (MAP_STATUS.getParameterCount() == 3
                            ? MAP_STATUS.invoke(null, location, lengths, mapId)
                            : MAP_STATUS.invoke(null, location, lengths, mapId, rowChecksum));
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("Spark's MapStatus cannot be made", e);
        }
    }

    /** Returns the dependencies of an RDD; the declared type differs in Scala 2.12 (Spark 3.5). */
    public static scala.collection.Seq<?> dependencies(RDD<?> rdd) {
        try {
            return (scala.collection.Seq<?>) DEPENDENCIES.invoke(rdd);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("the dependencies of an RDD cannot be read", e);
        }
    }

    /** Returns the stages of a job; the declared type differs as above. */
    public static scala.collection.Seq<?> stageInfos(SparkListenerJobStart job) {
        try {
            return (scala.collection.Seq<?>) STAGE_INFOS.invoke(job);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("the stages of a job cannot be read", e);
        }
    }

    /**
     * Returns the id of the next task, which is the id of its map attempt; {@code Long.MAX_VALUE}
     * if the scheduler is not Spark's own.
     */
    public static long nextTaskId(SparkContext context) {
        return context.taskScheduler() instanceof TaskSchedulerImpl scheduler
                ? scheduler.nextTaskId().get()
                : Long.MAX_VALUE;
    }

    /** Returns whether shuffles can have row checksums, as from 4.1 on. */
    public static boolean hasRowChecksums() {
        return ROW_CHECKSUMS;
    }

    private static Constructor<?> sorterConstructor() {
        for (Constructor<?> constructor : ExternalSorter.class.getConstructors()) {
            int parameters = constructor.getParameterCount();
            if (parameters == 5
                    || (parameters == 6 && constructor.getParameterTypes()[5].isArray())) {
                return constructor;
            }
        }
        return null;
    }

    /** Makes a sorter for the read side, from 4.1 on without row checksums. */
    @SuppressWarnings("rawtypes")
    public static ExternalSorter newSorter(
            TaskContext context, Option<?> aggregator, Option<?> ordering, Serializer serializer) {
        try {
            if (SORTER.getParameterCount() == 5) {
                return (ExternalSorter)
                        SORTER.newInstance(
                                context, aggregator, Option.empty(), ordering, serializer);
            }
            Object none = Array.newInstance(SORTER.getParameterTypes()[5].getComponentType(), 0);
            return (ExternalSorter)
                    SORTER.newInstance(
                            context, aggregator, Option.empty(), ordering, serializer, none);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("Spark's ExternalSorter cannot be made", e);
        }
    }

    /** Throws a checked exception from a method that declares none. */
    @SuppressWarnings("unchecked")
    public static <E extends Throwable> RuntimeException sneakyThrow(Throwable error) throws E {
        throw (E) error;
    }
}
