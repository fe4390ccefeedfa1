package io.sluice.spark.pipelined;

import io.sluice.client.gate.Source;
import io.sluice.client.wire.Message;
import io.sluice.spark.settings.SluiceSettings;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkEnv;
import org.apache.spark.rpc.RpcCallContext;
import org.apache.spark.rpc.RpcEndpoint;
import org.apache.spark.rpc.RpcEndpointRef;
import org.apache.spark.rpc.RpcEnv;
import org.apache.spark.rpc.RpcTimeout;
import org.apache.spark.util.RpcUtils;
import scala.Function1;
import scala.PartialFunction;
import scala.concurrent.duration.Duration;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/**
 * An RPC endpoint of the driver that records where the writers of pipelined shuffles are. A reader
 * gets its answer when all writers have registered.
 */
public final class ProducerDirectory implements RpcEndpoint {
    private static final String NAME = "sluice-producers";
    private static final String WRITES = "writes";
    private static final String WHERE = "where";

    /** Strings for each writer: map attempt, TaskManager, host, port. */
    private static final int FIELDS = 4;

    private final RpcEnv rpcEnv;
    private final Map<Integer, Shuffle> shuffles = new HashMap<>();

    /** The writers of one shuffle, and the readers that wait for the last of them. */
    private static final class Shuffle {
        final String[] writers;
        final boolean[] known;
        final List<RpcCallContext> readers = new ArrayList<>();
        int missing;

        Shuffle(int numMaps) {
            writers = new String[numMaps * FIELDS];
            known = new boolean[numMaps];
            missing = numMaps;
        }
    }

    ProducerDirectory(RpcEnv rpcEnv) {
        this.rpcEnv = rpcEnv;
    }

    // ---- in the driver

    /** The directory of this driver and its RPC endpoint. */
    public record Running(ProducerDirectory directory, RpcEndpointRef endpoint) {
        public void stop() {
            directory.rpcEnv.stop(endpoint);
        }
    }

    /** Starts the directory on the driver. */
    public static Running start() {
        RpcEnv rpcEnv = SparkEnv.get().rpcEnv();
        ProducerDirectory directory = new ProducerDirectory(rpcEnv);
        return new Running(directory, rpcEnv.setupEndpoint(NAME, directory));
    }

    public synchronized void register(int shuffleId, int numMaps) {
        shuffles.put(shuffleId, new Shuffle(numMaps));
    }

    /** Removes a shuffle; waiting readers get an error. */
    public synchronized boolean remove(int shuffleId) {
        Shuffle shuffle = shuffles.remove(shuffleId);
        if (shuffle != null) {
            shuffle.readers.forEach(reader -> reader.sendFailure(unknown(shuffleId)));
        }
        return shuffle != null;
    }

    @Override
    public RpcEnv rpcEnv() {
        return rpcEnv;
    }

    @Override
    public PartialFunction<Object, BoxedUnit> receiveAndReply(RpcCallContext caller) {
        return new AbstractPartialFunction<>() {
            @Override
            public boolean isDefinedAt(Object message) {
                return message instanceof String[];
            }

            @Override
            @SuppressWarnings("unchecked")
            public <A1, B1> B1 applyOrElse(A1 message, Function1<A1, B1> otherwise) {
                if (!(message instanceof String[] parts)) {
                    return otherwise.apply(message);
                }
                answer(parts, caller);
                return (B1) BoxedUnit.UNIT;
            }
        };
    }

    private synchronized void answer(String[] parts, RpcCallContext caller) {
        int shuffleId = Integer.parseInt(parts[1]);
        Shuffle shuffle = shuffles.get(shuffleId);
        if (shuffle == null) {
            caller.sendFailure(unknown(shuffleId));
        } else if (parts[0].equals(WRITES)) {
            int mapIndex = Integer.parseInt(parts[2]);
            System.arraycopy(parts, 3, shuffle.writers, mapIndex * FIELDS, FIELDS);
            shuffle.missing -= shuffle.known[mapIndex] ? 0 : 1;
            shuffle.known[mapIndex] = true;
            caller.reply("");
            if (shuffle.missing == 0) {
                shuffle.readers.forEach(reader -> reader.reply(shuffle.writers));
                shuffle.readers.clear();
            }
        } else if (shuffle.missing == 0) {
            caller.reply(shuffle.writers);
        } else {
            shuffle.readers.add(caller);
        }
    }

    private static IllegalStateException unknown(int shuffleId) {
        return new IllegalStateException("pipelined shuffle " + shuffleId + " is not registered");
    }

    // ---- in an executor

    /** Returns a reference to the directory, for tasks. */
    public static RpcEndpointRef lookUp() {
        SparkEnv env = SparkEnv.get();
        return RpcUtils.makeDriverRef(NAME, env.conf(), env.rpcEnv());
    }

    /** Registers where a map task writes. */
    static void writes(
            RpcEndpointRef directory,
            int shuffleId,
            int mapIndex,
            long mapAttemptId,
            Message.HelloAck taskManager,
            long timeoutMillis) {
        ask(
                directory,
                String.class,
                timeoutMillis,
                WRITES,
                Integer.toString(shuffleId),
                Integer.toString(mapIndex),
                Long.toString(mapAttemptId),
                taskManager.taskManagerId(),
                taskManager.advertisedHost(),
                Integer.toString(taskManager.dataPort()));
    }

    /** Returns where all map tasks write, after the last one has registered. */
    static List<Source> sources(RpcEndpointRef directory, int shuffleId, long timeoutMillis) {
        String[] writers =
                ask(directory, String[].class, timeoutMillis, WHERE, Integer.toString(shuffleId));
        List<Source> sources = new ArrayList<>();
        for (int i = 0; i < writers.length; i += FIELDS) {
            sources.add(
                    new Source(
                            writers[i + 1],
                            writers[i + 2],
                            Integer.parseInt(writers[i + 3]),
                            new long[] {Long.parseLong(writers[i])},
                            new int[] {1}));
        }
        return sources;
    }

    private static <T> T ask(
            RpcEndpointRef directory, Class<T> answer, long timeoutMillis, String... message) {
        ClassTag<T> tag = ClassTag$.MODULE$.apply(answer);
        RpcTimeout timeout =
                new RpcTimeout(
                        Duration.apply(timeoutMillis, TimeUnit.MILLISECONDS),
                        SluiceSettings.IO_TIMEOUT);
        return directory.askSync(message, timeout, tag);
    }
}
