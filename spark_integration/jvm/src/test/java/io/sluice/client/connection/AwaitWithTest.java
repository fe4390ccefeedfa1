package io.sluice.client.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.support.MockDaemon;
import io.sluice.client.support.TestCertificates;
import io.sluice.client.support.TestFrames;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A thread that waits on several connections at once. */
@Timeout(60)
class AwaitWithTest {
    private static final int PAYLOAD = 60_000;

    private final ChunkPool chunks = new ChunkPool(4);
    private final CountDownLatch waits = new CountDownLatch(1);
    private final CountDownLatch sent = new CountDownLatch(1);
    private final AtomicInteger frames = new AtomicInteger();

    private static ServerSocket server(boolean tls) throws Exception {
        InetAddress host = InetAddress.getLoopbackAddress();
        return tls
                ? TestCertificates.get()
                        .server(TestCertificates.SERVER)
                        .getServerSocketFactory()
                        .createServerSocket(0, 5, host)
                : new ServerSocket(0, 5, host);
    }

    private ClientOptions options(boolean tls) throws IOException {
        return tls
                ? TestCertificates.get().options(TestCertificates.CLIENT, chunks)
                : new ClientOptions("app", "test", 2_000, 2_000, chunks);
    }

    /** Does not read before the client waits; then reads everything and answers, after a pause. */
    private Void serve(ServerSocket server) throws Exception {
        try (Socket socket = server.accept()) {
            DataInputStream in =
                    new DataInputStream(new BufferedInputStream(socket.getInputStream()));
            TestFrames.read(in);
            Message ack = new Message.HelloAck(1, "tm-1", 1024, 0, 0, "127.0.0.1", 1, "i", 1, 2);
            socket.getOutputStream().write(TestFrames.frame(ack));
            assertTrue(sent.await(20, TimeUnit.SECONDS) && waits.await(20, TimeUnit.SECONDS));
            for (int i = 0; i < frames.get(); i++) {
                assertEquals(PAYLOAD, TestFrames.read(in).payload().length);
            }
            // Long enough to notice a thread that spins.
            TimeUnit.MILLISECONDS.sleep(200);
            socket.getOutputStream().write(TestFrames.frame(new Message.Pong(7)));
            socket.getInputStream().read();
            return null;
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aPartlySentRequestOfAnotherConnectionIsContinued(boolean tls) throws Exception {
        try (MockDaemon silent = new MockDaemon();
                ServerSocket server = server(tls)) {
            FutureTask<Void> serving = new FutureTask<>(() -> serve(server));
            new Thread(serving, "serve").start();
            TaskManagerConnection first =
                    TaskManagerConnection.connect(
                            silent.endpoint(), options(false), Message.ROLE_CONSUMER);
            TaskManagerConnection other =
                    TaskManagerConnection.connect(
                            Endpoint.tcp("127.0.0.1", server.getLocalPort()),
                            options(tls),
                            Message.ROLE_CONSUMER);
            // The socket takes no more, and the send buffer is nearly full.
            for (int more = 0; more < 3; more += other.isReusable() ? 0 : 1) {
                other.send(new Message.RegionData(1, 0), ByteBuffer.allocateDirect(PAYLOAD));
                frames.incrementAndGet();
            }
            assertTrue(frames.get() > 0);
            sent.countDown();

            AtomicBoolean answered = new AtomicBoolean();
            AtomicInteger asked = new AtomicInteger();
            other.setHandler(
                    new RoleHandler("on the other connection") {
                        @Override
                        public void onMessage(Message message) {
                            answered.set(message instanceof Message.Pong);
                        }
                    });
            first.awaitWith(
                    List.of(other),
                    () -> {
                        asked.incrementAndGet();
                        try {
                            other.receive();
                        } catch (IOException e) {
                            throw new UncheckedIOException(e);
                        }
                        waits.countDown();
                        return answered.get();
                    },
                    "an answer",
                    Long.MAX_VALUE);
            assertTrue(asked.get() < 10_000, asked + " rounds: it spins");
            other.close();
            first.close();
            serving.get();
        }
    }
}
