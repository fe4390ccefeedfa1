package io.sluice.spark.registration;

import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;

/**
 * Detects shuffles whose blocks are read with Spark's own block client, which TaskManagers do not
 * support. Only the operator that makes the exchange reveals it: the nearest one on the stack of
 * the thread that registers the shuffle.
 */
public final class DirectReaders {

    /** Operators that read their exchange themselves, with their names for users. */
    static final Map<String, String> OPERATORS =
            Map.of(
                    "org.apache.spark.sql.delta.perf.DeltaOptimizedWriterExec",
                    "Delta Lake's optimized write");

    private static final String EXCHANGE =
            "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec";
    private static final String OPERATOR_SUFFIX = "Exec";

    private DirectReaders() {}

    /** Returns why a shuffle that this thread registers must be Spark's own; empty otherwise. */
    public static Optional<String> reason() {
        return StackWalker.getInstance()
                .walk(frames -> reason(frames.map(StackWalker.StackFrame::getClassName)));
    }

    /**
     * Returns the reason for a stack.
     *
     * @param classes names of the classes, the callee first
     */
    public static Optional<String> reason(Stream<String> classes) {
        return classes.map(name -> name.contains("$") ? name.substring(0, name.indexOf('$')) : name)
                .filter(name -> name.endsWith(OPERATOR_SUFFIX) && !name.equals(EXCHANGE))
                .findFirst()
                .map(OPERATORS::get)
                .map(user -> user + " reads its blocks with Spark's own block client");
    }
}
