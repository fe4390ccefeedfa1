package io.sluice.client.connection;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.gate.InputGate;
import io.sluice.client.gate.Source;
import io.sluice.client.gate.TlsShuffleTest;
import io.sluice.client.output.MapOutputWriter;
import io.sluice.client.output.RegionPool;
import io.sluice.client.support.MockDaemon;
import io.sluice.client.support.Relay;
import io.sluice.client.support.ShuffleTestCase;
import io.sluice.client.support.TestCertificates;
import io.sluice.client.support.TestConnections;
import io.sluice.client.support.TestFrames;
import io.sluice.client.tls.Tls;
import io.sluice.client.tls.TlsSettings;
import io.sluice.client.wire.Blocks;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.security.MessageDigest;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Connections with TLS: which are made, which are refused and why, and how they end. Longer than
 * 450 lines, because all cases share the servers that answer one connection.
 */
@Timeout(60)
class TlsConnectionTest {
    private static final TestCertificates CERTIFICATES = TestCertificates.get();
    private static final Message.HelloAck ACK =
            new Message.HelloAck(1, "tm-1", 1024, 0, 0, "127.0.0.1", 1, "i", 0, 1);

    private final ChunkPool chunks = new ChunkPool(64);

    /** Answers one connection. */
    @FunctionalInterface
    private interface Answer {
        void to(Socket socket) throws IOException;
    }

    /** A connection that was answered. */
    private record Served(CompletableFuture<String> ended) {
        /** Returns how it ended on the server's side: empty, or the failure. */
        String await() throws Exception {
            return ended.get(20, TimeUnit.SECONDS);
        }
    }

    private static Endpoint endpoint(ServerSocket server) {
        return Endpoint.tcp("127.0.0.1", server.getLocalPort());
    }

    private static ServerSocket plainServer() throws IOException {
        return new ServerSocket(0, 5, InetAddress.getLoopbackAddress());
    }

    private static SSLServerSocket server(String alias) throws Exception {
        return (SSLServerSocket)
                CERTIFICATES
                        .server(alias)
                        .getServerSocketFactory()
                        .createServerSocket(0, 5, InetAddress.getLoopbackAddress());
    }

    /** Answers one connection on another thread. */
    private static Served serve(ServerSocket server, Answer answer) {
        CompletableFuture<String> ended = new CompletableFuture<>();
        Thread thread =
                new Thread(
                        () -> {
                            try (Socket socket = server.accept()) {
                                answer.to(socket);
                                ended.complete("");
                            } catch (IOException e) {
                                ended.complete(e.toString());
                            }
                        },
                        "tls-serve");
        thread.setDaemon(true);
        thread.start();
        return new Served(ended);
    }

    /** Answers the Hello, and reads until the end. */
    private static void answerHello(Socket socket) throws IOException {
        answerHello(socket, ACK);
        assertEquals(-1, socket.getInputStream().read());
    }

    private static void answerHello(Socket socket, Message answer) throws IOException {
        TestFrames.read(new DataInputStream(socket.getInputStream()));
        socket.getOutputStream().write(TestFrames.frame(answer));
    }

    private static String refusal(Endpoint endpoint, ClientOptions options) {
        ClientException.ConnectFailed failure =
                assertThrows(
                        ClientException.ConnectFailed.class,
                        () ->
                                TaskManagerConnection.connect(
                                        endpoint, options, Message.ROLE_DRIVER));
        assertInstanceOf(ClientException.Refused.class, failure.getCause(), failure.getMessage());
        assertFalse(failure.getMessage().contains("Start one there"), failure.getMessage());
        assertFalse(failure.getMessage().contains("\n"), failure.getMessage());
        return failure.summary();
    }

    private static void assertContains(String text, String... parts) {
        for (String part : parts) {
            assertTrue(text.contains(part), text);
        }
    }

    private ClientOptions plain() {
        return new ClientOptions("app", "test", 5_000, 5_000, chunks);
    }

    private ClientOptions anonymous(String protocol) throws IOException {
        return TestCertificates.options(
                CERTIFICATES.settings(null, TestCertificates.CA, protocol, true), chunks);
    }

    @ParameterizedTest
    @ValueSource(strings = {TlsSettings.TLS_1_2, TlsSettings.TLS_1_3})
    void bothSidesShowACertificateAndEndInOrder(String version) throws Exception {
        try (SSLServerSocket server = server(TestCertificates.SERVER)) {
            server.setNeedClientAuth(true);
            server.setEnabledProtocols(new String[] {version});
            Served ended =
                    serve(
                            server,
                            socket -> {
                                answerHello(socket);
                                assertEquals(
                                        "CN=client",
                                        ((SSLSocket) socket)
                                                .getSession()
                                                .getPeerPrincipal()
                                                .getName());
                            });
            TlsSettings settings =
                    CERTIFICATES.settings(
                            TestCertificates.CLIENT, TestCertificates.CA, version, true);
            TaskManagerConnection.connect(
                            endpoint(server),
                            TestCertificates.options(settings, chunks),
                            Message.ROLE_DRIVER)
                    .close();
            assertEquals("", ended.await(), "the server saw another end");
        }
    }

    @Test
    void theBindingIsTheHashOfTheServersCertificate() throws Exception {
        try (SSLServerSocket server = server(TestCertificates.SERVER)) {
            serve(server, TlsConnectionTest::answerHello);
            ClientOptions options = CERTIFICATES.options(TestCertificates.CLIENT, chunks);
            try (FrameSocket socket = FrameSocket.open(endpoint(server), options, null)) {
                assertEquals(0, socket.channelBinding().length);
                new ConnectionWaits(socket, options).connect();
                byte[] der = CERTIFICATES.certificate(TestCertificates.SERVER).getEncoded();
                assertArrayEquals(
                        MessageDigest.getInstance("SHA-256").digest(der), socket.channelBinding());
            }
        }
        try (ServerSocket server = plainServer();
                FrameSocket socket = FrameSocket.open(endpoint(server), plain(), null)) {
            new ConnectionWaits(socket, plain()).connect();
            assertEquals(0, socket.channelBinding().length);
        }
    }

    @Test
    void anUntrustedCertificateIsRefused() throws Exception {
        try (SSLServerSocket server = server(TestCertificates.STRANGER)) {
            Served ended = serve(server, TlsConnectionTest::answerHello);
            assertContains(
                    refusal(
                            endpoint(server),
                            CERTIFICATES.options(TestCertificates.CLIENT, chunks)),
                    "its certificate is not trusted",
                    "spark.sluice.ssl.caFile",
                    "spark.sluice.ssl.trustStore");
            // The server may still be writing when the client has gone: then the alert is lost.
            assertTrue(
                    ended.await()
                            .matches("(?s).*(certificate_unknown|Broken pipe|Connection reset).*"),
                    "the server saw another end");
        }
    }

    @Test
    void anExpiredCertificateIsRefused() throws Exception {
        try (SSLServerSocket server = server(TestCertificates.EXPIRED)) {
            serve(server, TlsConnectionTest::answerHello);
            assertContains(
                    refusal(
                            endpoint(server),
                            CERTIFICATES.options(TestCertificates.CLIENT, chunks)),
                    "its certificate has expired",
                    "renew it there");
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"127.0.0.1", "localhost"})
    void aCertificateOfAnotherHostIsRefused(String host) throws Exception {
        try (SSLServerSocket server = server(TestCertificates.ELSEWHERE)) {
            serve(server, TlsConnectionTest::answerHello);
            Endpoint endpoint = Endpoint.tcp(host, server.getLocalPort());
            assertContains(
                    refusal(endpoint, CERTIFICATES.options(TestCertificates.CLIENT, chunks)),
                    "its certificate is for another host",
                    host,
                    "spark.sluice.ssl.checkHostName=false");
        }
    }

    @Test
    void theHostNameIsNotCheckedOnRequest() throws Exception {
        try (SSLServerSocket server = server(TestCertificates.ELSEWHERE)) {
            Served ended = serve(server, TlsConnectionTest::answerHello);
            TlsSettings settings =
                    CERTIFICATES.settings(
                            TestCertificates.CLIENT,
                            TestCertificates.CA,
                            TlsSettings.TLS_1_3,
                            false);
            TaskManagerConnection.connect(
                            endpoint(server),
                            TestCertificates.options(settings, chunks),
                            Message.ROLE_DRIVER)
                    .close();
            assertEquals("", ended.await());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {TlsSettings.TLS_1_2, TlsSettings.TLS_1_3})
    void aServerThatRequiresACertificateIsTold(String version) throws Exception {
        try (SSLServerSocket server = server(TestCertificates.SERVER)) {
            server.setNeedClientAuth(true);
            server.setEnabledProtocols(new String[] {version});
            serve(server, TlsConnectionTest::answerHello);
            assertContains(
                    refusal(endpoint(server), anonymous(version)),
                    "it requires a client certificate",
                    "spark.sluice.ssl.certChain",
                    "spark.sluice.ssl.keyStore");
        }
    }

    @Test
    void anUnknownClientCertificateIsTold() throws Exception {
        try (SSLServerSocket server = server(TestCertificates.SERVER)) {
            server.setNeedClientAuth(true);
            serve(server, TlsConnectionTest::answerHello);
            assertContains(
                    refusal(
                            endpoint(server),
                            CERTIFICATES.options(TestCertificates.STRANGER, chunks)),
                    "certificate",
                    "transport.tls_ca_file",
                    "spark.sluice.ssl.certChain");
        }
    }

    @Test
    void versionsWithoutACommonOneAreTold() throws Exception {
        try (SSLServerSocket server = server(TestCertificates.SERVER)) {
            server.setEnabledProtocols(new String[] {TlsSettings.TLS_1_2});
            serve(server, TlsConnectionTest::answerHello);
            assertContains(
                    refusal(
                            endpoint(server),
                            CERTIFICATES.options(TestCertificates.CLIENT, chunks)),
                    "spark.sluice.ssl.protocol");
        }
    }

    @Test
    void aServerWithoutTlsIsTold() throws Exception {
        try (ServerSocket server = plainServer()) {
            serve(
                    server,
                    socket -> {
                        socket.getOutputStream()
                                .write(
                                        TestFrames.frame(
                                                new Message.ErrorResponse(
                                                        null,
                                                        3,
                                                        1,
                                                        false,
                                                        "too large",
                                                        "",
                                                        "",
                                                        null)));
                        assertTrue(socket.getInputStream().readAllBytes().length > 0);
                    });
            assertContains(
                    refusal(
                            endpoint(server),
                            CERTIFICATES.options(TestCertificates.CLIENT, chunks)),
                    "it does not speak TLS",
                    "spark.sluice.ssl.enabled=false");
        }
    }

    @Test
    void aServerThatClosesAtOnceIsTold() throws Exception {
        try (ServerSocket server = plainServer()) {
            serve(server, socket -> assertTrue(socket.getInputStream().read() > 0));
            ClientException.ConnectFailed failure =
                    assertThrows(
                            ClientException.ConnectFailed.class,
                            () ->
                                    TaskManagerConnection.connect(
                                            endpoint(server),
                                            CERTIFICATES.options(TestCertificates.CLIENT, chunks),
                                            Message.ROLE_DRIVER));
            // The kernel may say so by a reset, if it had unread bytes.
            assertTrue(
                    failure.getMessage().contains("during the TLS handshake")
                            || failure.getMessage().contains("reset"),
                    failure.getMessage());
        }
    }

    @Test
    void aServerThatIsSilentMeetsTheDeadlineOfTheConnect() throws Exception {
        try (ServerSocket server = plainServer()) {
            ClientOptions options =
                    new ClientOptions(
                            "app",
                            "test",
                            300,
                            60_000,
                            chunks,
                            CERTIFICATES.options(TestCertificates.CLIENT, chunks).tls(),
                            null);
            ClientException.ConnectFailed failure =
                    assertThrows(
                            ClientException.ConnectFailed.class,
                            () ->
                                    TaskManagerConnection.connect(
                                            endpoint(server), options, Message.ROLE_DRIVER));
            assertContains(
                    failure.getMessage(),
                    "waited 300 ms for the handshake of TLS",
                    "spark.sluice.io.connectTimeout");
        }
    }

    @Test
    void aClientWithoutTlsIsToldByAnAlert() throws Exception {
        try (SSLServerSocket server = server(TestCertificates.SERVER)) {
            serve(server, TlsConnectionTest::answerHello);
            assertContains(
                    refusal(endpoint(server), plain()),
                    "this port speaks TLS only",
                    "spark.sluice.ssl.enabled=true",
                    "spark.sluice.ssl.caFile");
        }
    }

    @Test
    void aClientWithoutTlsIsToldByATaskManager() throws Exception {
        try (ServerSocket server = plainServer()) {
            Message refusal =
                    new Message.ErrorResponse(
                            null,
                            ErrorCode.CONFIGURATION.number(),
                            1,
                            false,
                            "This port speaks TLS only, and the client does not",
                            "",
                            "",
                            null);
            serve(server, socket -> answerHello(socket, refusal));
            assertContains(refusal(endpoint(server), plain()), "spark.sluice.ssl.enabled=true");
        }
    }

    @Test
    void encryptedPeersAreRequiredOnRequest() throws Exception {
        for (boolean encrypts : new boolean[] {false, true}) {
            try (MockDaemon daemon = new MockDaemon()) {
                daemon.features |= encrypts ? Frames.PEERS_ENCRYPTED : 0;
                ClientOptions options =
                        new ClientOptions(
                                "app", "test", 5_000, 5_000, chunks, Tls.of(null, true), null);
                if (encrypts) {
                    TaskManagerConnection.connect(daemon.endpoint(), options, Message.ROLE_DRIVER)
                            .close();
                } else {
                    assertContains(
                            refusal(daemon.endpoint(), options),
                            "spark.network.crypto.enabled",
                            "set transport.tls_enabled there");
                }
            }
        }
    }

    @Test
    void bytesMayComeOneByOne() throws Exception {
        try (MockDaemon daemon = TlsShuffleTest.encryptedDaemon();
                Relay relay = new Relay(daemon.endpoint().port(), 1);
                ConnectionPool pool =
                        new ConnectionPool(
                                CERTIFICATES.options(TestCertificates.CLIENT, chunks), 4)) {
            byte[] written = new byte[30_000];
            new java.util.Random(5).nextBytes(written);
            MapOutputWriter writer =
                    new MapOutputWriter(
                            new TestConnections(pool, relay.endpoint(), Message.ROLE_PRODUCER),
                            new RegionPool(64 * 1024, 1, 0),
                            1,
                            7,
                            1,
                            Blocks.MAX_STORED_BYTES);
            writer.beginPartition(0);
            writer.write(written, 0, written.length);
            writer.endPartition();
            writer.commit();
            try (InputGate gate =
                    new InputGate(
                            new TestConnections(pool, relay.endpoint(), Message.ROLE_CONSUMER),
                            1,
                            0,
                            1,
                            2,
                            false,
                            java.util.List.of(
                                    new Source(
                                            MockDaemon.ID,
                                            "127.0.0.1",
                                            1,
                                            new long[] {7},
                                            new int[] {1})))) {
                assertArrayEquals(written, ShuffleTestCase.readAll(gate).get("7/0"));
            }
        }
    }

    /** Cuts the server's bytes off at many places of the handshake and behind it. */
    @Test
    void aCutIsToldFromAnEnd() throws Exception {
        ClientOptions options = CERTIFICATES.options(TestCertificates.CLIENT, chunks);
        int made = 0;
        try (MockDaemon daemon = TlsShuffleTest.encryptedDaemon();
                Relay relay = new Relay(daemon.endpoint().port(), 1024)) {
            for (int bytes = 1; bytes < 20_000 && made < 3; bytes += 1 + bytes / 7) {
                relay.mostFromServer.set(bytes);
                try (DriverClient driver =
                        new DriverClient(relay.endpoint(), options, new OutputEvents() {})) {
                    made++;
                    daemon.answersPings = true;
                    IOException lost =
                            assertThrows(
                                    IOException.class,
                                    () -> {
                                        while (true) {
                                            driver.ping();
                                        }
                                    });
                    assertContains(lost.getMessage(), "was cut off");
                } catch (ClientException.ConnectFailed e) {
                    String why = e.getMessage();
                    assertTrue(
                            why.contains("during the TLS handshake")
                                    || why.contains("was cut off")
                                    || why.contains("reset"),
                            why);
                }
            }
        }
        assertEquals(3, made, "no cut came behind the handshake");
    }

    @Test
    void anOrderlyEndIsToldAsOne() throws Exception {
        try (SSLServerSocket server = server(TestCertificates.SERVER)) {
            serve(server, socket -> answerHello(socket, ACK));
            try (DriverClient driver =
                    new DriverClient(
                            endpoint(server),
                            CERTIFICATES.options(TestCertificates.CLIENT, chunks),
                            new OutputEvents() {})) {
                IOException lost =
                        assertThrows(ClientException.ConnectionLost.class, () -> driver.ping());
                assertContains(lost.getMessage(), "the TaskManager closed it");
            }
        }
    }
}
