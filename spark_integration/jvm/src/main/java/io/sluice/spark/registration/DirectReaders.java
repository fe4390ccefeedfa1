package io.sluice.spark.registration;

import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;

/**
 * Recognizes shuffles whose blocks are read with Spark's own block client instead of the shuffle
 * manager. Such a reader connects to the address of a map output and speaks Spark's protocol, which
 * a TaskManager does not.
 *
 * <p>Nothing in the shuffle tells: its RDDs, partitioner and serializer are those of any exchange
 * of Spark SQL. The operator that makes the exchange is on the stack of the thread that registers
 * it. The operators below it may make exchanges of their own at the same time, and these are nearer
 * to the top; so only the nearest operator counts.
 */
public final class DirectReaders {

    /** Operators that read their exchange themselves, and what users call them. */
    static final Map<String, String> OPERATORS =
            Map.of(
                    "org.apache.spark.sql.delta.perf.DeltaOptimizedWriterExec",
                    "Delta Lake's optimized write");

    private static final String EXCHANGE =
            "org.apache.spark.sql.execution.exchange.ShuffleExchangeExec";
    private static final String OPERATOR_SUFFIX = "Exec";

    private DirectReaders() {}

    /**
     * Returns why a shuffle that this thread registers must be Spark's own; empty if it need not.
     */
    public static Optional<String> reason() {
        return StackWalker.getInstance()
                .walk(frames -> reason(frames.map(StackWalker.StackFrame::getClassName)));
    }

    /**
     * Returns the reason for a stack.
     *
     * @param classes names of the classes, beginning with the callee
     */
    public static Optional<String> reason(Stream<String> classes) {
        return classes.map(name -> name.contains("$") ? name.substring(0, name.indexOf('$')) : name)
                .filter(name -> name.endsWith(OPERATOR_SUFFIX) && !name.equals(EXCHANGE))
                .findFirst()
                .map(OPERATORS::get)
                .map(user -> user + " reads its blocks with Spark's own block client");
    }
}
