package io.sluice.client.output;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import io.sluice.client.support.ShuffleTestCase;
import io.sluice.client.support.TestConnections;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Asks the mock daemon for copies of map outputs. */
@Timeout(60)
class ReplicasTest extends ShuffleTestCase {
    private static final Replicas TWO = new Replicas(2, true);

    private void writeWith(Replicas replicas) throws IOException {
        writers = new TestConnections(pool, daemon.endpoint(), Message.ROLE_PRODUCER);
        MapOutputWriter writer =
                new MapOutputWriter(writers, regions, 0, 1, 7, 100, blockBytes, replicas);
        writer.beginPartition(0);
        writer.write(new byte[150_000], 0, 150_000);
        writer.endPartition();
        writer.commit();
    }

    private List<Message> received() {
        return List.copyOf(daemon.received);
    }

    private long asked() {
        return received().stream().filter(Message.ReplicatePartition.class::isInstance).count();
    }

    @Test
    void copiesAreAskedForRightBeforeTheCommit() throws IOException {
        writeWith(TWO);
        List<Message> all = received();
        int at = all.size() - 1;
        while (!(all.get(at) instanceof Message.FinishPartition)) {
            at--;
        }
        Message.ReplicatePartition asked =
                assertInstanceOf(Message.ReplicatePartition.class, all.get(at - 1));
        assertEquals(((Message.FinishPartition) all.get(at)).partition(), asked.partition());
        assertEquals(new Message.ReplicatePartition(asked.partition(), 2, true), asked);
        assertEquals(1, asked());
    }

    @ParameterizedTest
    @ValueSource(classes = {Message.ReplicatePartition.class, Message.FinishPartition.class})
    void copiesAreAskedForAgainWhenTheOutputIsResumed(Class<?> lost) throws IOException {
        daemon.cut.set(lost::isInstance);
        writeWith(TWO);
        List<Message> all = received();
        int resumed =
                all.stream().map(Message::getClass).toList().indexOf(Message.ResumePartition.class);
        assertEquals(2, asked());
        assertEquals(
                1,
                all.subList(resumed, all.size()).stream()
                        .filter(Message.ReplicatePartition.class::isInstance)
                        .count());
    }

    @Test
    void noneAreAskedForWithoutReplicas() throws IOException {
        writeWith(Replicas.ONE);
        assertEquals(0, asked());
    }
}
