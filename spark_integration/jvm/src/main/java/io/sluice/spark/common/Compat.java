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

/**
 * Calls the parts of Spark that differ between 3.5 and 4.3, by reflection. They are looked up when
 * this class is loaded.
 */
public final class Compat {
    private static final Constructor<?> SORTER = sorterConstructor();
    private static final Method MAP_STATUS = mapStatusMethod();
    private static final Method DEPENDENCIES = method(RDD.class, "dependencies");
    private static final Method STAGE_INFOS = method(SparkListenerJobStart.class, "stageInfos");
    private static final boolean ROW_CHECKSUMS =
            method(ShuffleDependency.class, "rowBasedChecksums") != null;

    private Compat() {}

    /** Fails with a clear message on a line of Spark that this jar does not support. */
    public static void check() {
        String other =
                SORTER == null
                        ? "constructor of ExternalSorter"
                        : MAP_STATUS == null
                                ? "MapStatus.apply"
                                : DEPENDENCIES == null
                                        ? "RDD.dependencies"
                                        : STAGE_INFOS == null
                                                ? "SparkListenerJobStart.stageInfos"
                                                : null;
        if (other != null) {
            throw new IllegalStateException(
                    "Spark "
                            + org.apache.spark.package$.MODULE$.SPARK_VERSION()
                            + " is not supported by this sluice-spark.jar, which supports 3.5 to"
                            + " 4.3: its "
                            + other
                            + " differs");
        }
    }

    /** Fails on lines of Spark without pipelined shuffles. */
    public static void requirePipelinedShuffles() {
        try {
            Class.forName(
                    "org.apache.spark.shuffle.PipelinedShuffleManager",
                    false,
                    ExternalSorter.class.getClassLoader());
        } catch (ClassNotFoundException e) {
            throw new IllegalArgumentException(
                    SluiceSettings.PIPELINED
                            + " is true: Spark "
                            + org.apache.spark.package$.MODULE$.SPARK_VERSION()
                            + " has no pipelined shuffles, 4.3 is the first line that has; remove"
                            + " the setting",
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

    /**
     * Makes a map status. It takes three arguments on 3.5 and 4.0; from 4.1 on also the checksum of
     * the rows.
     */
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

    /**
     * Returns the dependencies of an RDD. The declared type differs between Scala 2.12 (Spark 3.5)
     * and 2.13; this is a supertype of both.
     */
    public static scala.collection.Seq<?> dependencies(RDD<?> rdd) {
        try {
            return (scala.collection.Seq<?>) DEPENDENCIES.invoke(rdd);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("the dependencies of an RDD cannot be read", e);
        }
    }

    /**
     * Returns the stages of a job; the declared type differs like that of {@link #dependencies}.
     */
    public static scala.collection.Seq<?> stageInfos(SparkListenerJobStart job) {
        try {
            return (scala.collection.Seq<?>) STAGE_INFOS.invoke(job);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("the stages of a job cannot be read", e);
        }
    }

    /**
     * Returns the id of the task that Spark starts next, or {@code Long.MAX_VALUE} if the scheduler
     * is not Spark's own. A map attempt is named by the id of its task.
     */
    public static long nextTaskId(SparkContext context) {
        return context.taskScheduler() instanceof TaskSchedulerImpl scheduler
                ? scheduler.nextTaskId().get()
                : Long.MAX_VALUE;
    }

    /** Returns whether a shuffle can have checksums of its rows, as from 4.1 on. */
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

    /**
     * Makes a sorter for the read side. Its constructor takes five arguments on 3.5 and 4.0; from
     * 4.1 on also row checksums, which the read side does not have.
     */
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

    /**
     * Throws a checked exception out of a method of a Scala interface that declares no exceptions.
     */
    @SuppressWarnings("unchecked")
    public static <E extends Throwable> RuntimeException sneakyThrow(Throwable error) throws E {
        throw (E) error;
    }
}
