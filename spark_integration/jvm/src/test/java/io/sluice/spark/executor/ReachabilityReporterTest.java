package io.sluice.spark.executor;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.Message;
import io.sluice.spark.common.DriverMessages;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.api.plugin.PluginContext;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class ReachabilityReporterTest {
    private final List<String> sent = new ArrayList<>();
    private boolean driverIsBusy;

    private final PluginContext context =
            (PluginContext)
                    Proxy.newProxyInstance(
                            PluginContext.class.getClassLoader(),
                            new Class<?>[] {PluginContext.class},
                            (proxy, method, arguments) ->
                                    switch (method.getName()) {
                                        case "executorID" -> "1";
                                        case "send" -> send((String[]) arguments[0]);
                                        default -> throw new UnsupportedOperationException();
                                    });

    private final ReachabilityReporter reporter =
            new ReachabilityReporter(context, () -> {}, 60_000);

    private Object send(String[] message) throws IOException {
        if (driverIsBusy) {
            throw new IOException("the driver is busy");
        }
        if (message[0].equals(DriverMessages.REACHED)) {
            DriverMessages.Reached reached = DriverMessages.Reached.read(message);
            sent.add(reached.taskManagerId() + " at " + reached.port());
        } else {
            sent.add(message[0]);
        }
        return null;
    }

    private void reach(String id, int firstPort, int process) {
        reporter.reached(
                new Message.HelloAck(
                        1,
                        id,
                        1024,
                        0,
                        0,
                        "host",
                        new DataProcesses("host", firstPort, 2).portOf(process),
                        "i",
                        process,
                        2),
                "host");
    }

    @AfterEach
    void close() {
        reporter.close();
    }

    @Test
    void eachProcessIsReportedOnce() {
        for (int task = 0; task < 4; task++) {
            reach("a-0", 7337, 0);
            reach("a-1", 7337, 1);
        }
        assertEquals(List.of("a-0 at 7337", "a-1 at 7339"), sent);
    }

    @Test
    void aProcessWithANewIdIsReported() {
        reach("a-0", 7337, 0);
        reach("a-1", 7337, 1);
        reach("new", 7337, 1);
        assertEquals(List.of("a-0 at 7337", "a-1 at 7339", "new at 7339"), sent);
    }

    /** The driver forgets the processes of the TaskManager before. */
    @Test
    void aReturnToATaskManagerIsReported() {
        reach("a-0", 7337, 0);
        reach("b-0", 7400, 0);
        reach("a-0", 7337, 0);
        reporter.unreachable("none answers");
        reach("a-0", 7337, 0);
        assertEquals(
                List.of(
                        "a-0 at 7337",
                        "b-0 at 7400",
                        "a-0 at 7337",
                        DriverMessages.UNREACHABLE,
                        "a-0 at 7337"),
                sent);
    }

    @Test
    void aTaskManagerThatTheDriverDoesNotKnowIsReportedAgain() {
        reach("a-0", 7337, 0);
        reporter.forgetUnless(processes -> true);
        reach("a-0", 7337, 0);
        reporter.forgetUnless(processes -> false);
        reach("a-0", 7337, 0);
        assertEquals(List.of("a-0 at 7337", "a-0 at 7337"), sent);
    }

    @Test
    void aReportThatWasNotSentIsRepeated() {
        reach("a-0", 7337, 0);
        driverIsBusy = true;
        reach("a-1", 7337, 1);
        driverIsBusy = false;
        reach("a-1", 7337, 1);
        reach("a-0", 7337, 0);
        assertEquals(List.of("a-0 at 7337", "a-1 at 7339", "a-0 at 7337"), sent);
    }
}
