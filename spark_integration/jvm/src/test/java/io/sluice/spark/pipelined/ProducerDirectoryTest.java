package io.sluice.spark.pipelined;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.apache.spark.rpc.RpcAddress;
import org.apache.spark.rpc.RpcCallContext;
import org.junit.jupiter.api.Test;

/** Checks when readers are told where the writers of a pipelined shuffle are. */
class ProducerDirectoryTest {
    private final ProducerDirectory directory = new ProducerDirectory(null);

    /** Keeps the answer to one question. */
    private static final class Call implements RpcCallContext {
        Object answer;
        Throwable failure;

        @Override
        public void reply(Object response) {
            answer = response;
        }

        @Override
        public void sendFailure(Throwable error) {
            failure = error;
        }

        @Override
        public RpcAddress senderAddress() {
            return null;
        }
    }

    private Call ask(String... message) {
        Call call = new Call();
        directory.receiveAndReply(call).apply(message);
        return call;
    }

    @Test
    void readersAreAnsweredWhenTheLastWriterHasRegistered() {
        directory.register(3, 2);
        Call early = ask("where", "3");
        Call alsoEarly = ask("where", "3");
        assertNotNull(ask("writes", "3", "1", "71", "tm2", "host2", "7338").answer);
        assertNull(early.answer);
        assertNotNull(ask("writes", "3", "0", "70", "tm1", "host1", "7337").answer);
        String[] all = {"70", "tm1", "host1", "7337", "71", "tm2", "host2", "7338"};
        assertArrayEquals(all, (String[]) early.answer);
        assertArrayEquals(all, (String[]) alsoEarly.answer);
        assertArrayEquals(
                all, (String[]) ask("where", "3").answer, "a late one is answered at once");
    }

    @Test
    void aWriterThatRegistersTwiceCountsOnce() {
        directory.register(3, 2);
        Call reader = ask("where", "3");
        ask("writes", "3", "0", "70", "tm1", "host1", "7337");
        ask("writes", "3", "0", "75", "tm2", "host2", "7338");
        assertNull(reader.answer);
        ask("writes", "3", "1", "71", "tm1", "host1", "7337");
        assertEquals("75", ((String[]) reader.answer)[0], "the newest attempt");
    }

    @Test
    void waitingReadersAreToldWhenTheShuffleIsRemoved() {
        directory.register(3, 1);
        Call reader = ask("where", "3");
        assertTrue(directory.remove(3));
        assertTrue(
                reader.failure.getMessage().contains("pipelined shuffle 3"),
                reader.failure.getMessage());
        assertNotNull(ask("where", "3").failure);
        assertNotNull(ask("writes", "3", "0", "70", "tm1", "host1", "7337").failure);
    }
}
