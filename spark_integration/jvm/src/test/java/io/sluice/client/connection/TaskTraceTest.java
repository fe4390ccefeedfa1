package io.sluice.client.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.sluice.client.gate.InputGate;
import io.sluice.client.gate.Source;
import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.support.MockDaemon;
import io.sluice.client.support.ShuffleTestCase;
import io.sluice.client.support.TestConnections;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Sends the contexts of traces to the mock daemon. */
@Timeout(60)
class TaskTraceTest extends ShuffleTestCase {
    private static final String PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    private static final TaskTrace TRACE = new TaskTrace(PARENT, 7, 1L << 40);

    private void writeTraced() throws IOException {
        MapOutputWriter writer = writer(7);
        writers.trace = TRACE;
        writer.beginPartition(0);
        writer.write(new byte[1000], 0, 1000);
        writer.endPartition();
        writer.commit();
    }

    private List<Message> received() {
        return List.copyOf(daemon.received);
    }

    private List<? extends Class<?>> kinds() {
        return received().stream().map(Object::getClass).toList();
    }

    private Message.TraceContext context() {
        return received().stream()
                .filter(Message.TraceContext.class::isInstance)
                .map(Message.TraceContext.class::cast)
                .findFirst()
                .orElseThrow();
    }

    @Test
    void aMapOutputHasItsContextBehindItsOpening() throws IOException {
        daemon.features = Frames.TRACES;
        writeTraced();
        int opened = kinds().indexOf(Message.OpenPartition.class);
        assertEquals(Message.TraceContext.class, kinds().get(opened + 1));
        long number = ((Message.OpenPartition) received().get(opened)).partition();
        assertEquals(new Message.TraceContext(number, PARENT, 7L, 1L << 40), context());
    }

    @Test
    void aGateHasItsContextInFrontOfIt() throws IOException {
        daemon.features = Frames.TRACES;
        write(7, 1, 5000);
        readers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_CONSUMER);
        readers.trace = TRACE;
        Source source = new Source(MockDaemon.ID, "127.0.0.1", 1, new long[] {7}, new int[] {1});
        try (InputGate gate = new InputGate(readers, 1, 0, 1, 4, false, List.of(source))) {
            readAll(gate);
        }
        int opened = kinds().indexOf(Message.OpenGate.class);
        assertEquals(Message.TraceContext.class, kinds().get(opened - 1));
        long number = ((Message.OpenGate) received().get(opened)).gate();
        assertEquals(new Message.TraceContext(number, PARENT, 7L, 1L << 40), context());
    }

    @Test
    void aTaskManagerWithoutTracesGetsNoContext() throws IOException {
        writeTraced();
        assertEquals(-1, kinds().indexOf(Message.TraceContext.class));
    }

    @Test
    void aTextThatCannotBeATraceparentIsLeftOut() {
        assertEquals("", new TaskTrace("0".repeat(257), 1, 2).traceparent());
        assertEquals("", new TaskTrace(null, 1, 2).traceparent());
    }
}
