package io.sluice.client.connection;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.auth.Credential;
import io.sluice.client.auth.Proofs;
import io.sluice.client.support.TestFrames;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.Frames;
import io.sluice.client.wire.Message;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Handshakes with a TaskManager that is played by the test. */
class HandshakeTest {
    private static final String SECRET =
            "sluice-secret-1-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    private static final Credential DRIVER = Credential.parse(SECRET);
    private static final Credential OTHER =
            Credential.parse("sluice-secret-1-ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1-f4CBgoM");
    private static final Message.HelloAck ACK =
            new Message.HelloAck(1, "tm", 1024, 0, 0, "127.0.0.1", 7337, "i", 0, 1);

    /** The side of the TaskManager. */
    private interface Script {
        void play(Session session) throws IOException;
    }

    /** An accepted connection. */
    private static final class Session {
        private final Socket socket;
        private final DataInputStream in;

        Session(Socket socket) throws IOException {
            this.socket = socket;
            socket.setSoTimeout(10_000);
            in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
        }

        Message read() throws IOException {
            return TestFrames.read(in).message();
        }

        void send(Message message) throws IOException {
            socket.getOutputStream().write(TestFrames.frame(message));
        }

        /** Reads Hello and Proof, checks them, and leaves the answer to the script. */
        Proofs challenge(Credential credential) throws IOException {
            Message.Hello hello = (Message.Hello) read();
            String dialed = "127.0.0.1:" + socket.getLocalPort();
            byte[] claim = credential.claim().packFor(dialed);
            assertEquals(Frames.NONCE_BYTES + claim.length, hello.token().length);
            assertTrue(
                    Arrays.equals(hello.token(), 32, hello.token().length, claim, 0, claim.length));
            Message.Challenge challenge = new Message.Challenge(Credential.random(32));
            send(challenge);
            Proofs proofs = new Proofs(credential.key(), new byte[0]);
            proofs.add(hello);
            proofs.add(challenge);
            Message.Proof proof = (Message.Proof) read();
            assertArrayEquals(proofs.ofConnecting().proof(), proof.proof());
            proofs.add(proof);
            return proofs;
        }

        /** Sends a proof and the answer; checks that the client sends nothing more. */
        void end(Message proof) throws IOException {
            send(proof);
            send(ACK);
            assertTrue(isOver());
        }

        /** Returns whether the client has ended the connection, having sent nothing more. */
        boolean isOver() throws IOException {
            return in.read() < 0;
        }
    }

    private static void connect(Credential credential, int role, Script script) throws Exception {
        try (ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            CompletableFuture<Void> played =
                    CompletableFuture.runAsync(
                            () -> {
                                try (Socket socket = server.accept()) {
                                    script.play(new Session(socket));
                                } catch (IOException e) {
                                    throw new IllegalStateException(e);
                                }
                            });
            ClientOptions options =
                    new ClientOptions(
                            "app", "test", 1_000, 2_000, new ChunkPool(4), null, credential);
            try (TaskManagerConnection connection =
                    TaskManagerConnection.connect(
                            Endpoint.tcp("127.0.0.1", server.getLocalPort()), options, role)) {
                assertEquals(ACK, connection.taskManager());
            } finally {
                played.get(10, TimeUnit.SECONDS);
            }
        }
    }

    /** Checks that a connect fails for {@code why}, and that its message names the remedy. */
    private static ClientException.ConnectFailed checkFails(
            Credential credential, int role, String why, Script script) {
        ClientException.ConnectFailed failure =
                assertThrows(
                        ClientException.ConnectFailed.class,
                        () -> connect(credential, role, script));
        assertTrue(failure.getMessage().contains(why), failure.getMessage());
        assertTrue(failure.summary().contains("spark.sluice.auth.tokenFile"), failure.getMessage());
        assertFalse(failure.getMessage().contains("\n"), failure.getMessage());
        return failure;
    }

    private static void checkUnproven(Script script) {
        checkFails(DRIVER, Message.ROLE_DRIVER, "belongs to the cluster", script);
    }

    @Test
    void bothSidesProveThemselves() throws Exception {
        for (int role : new int[] {Message.ROLE_PRODUCER, Message.ROLE_CONSUMER}) {
            connect(DRIVER, role, session -> answer(session, DRIVER.forTasks()));
            connect(DRIVER.forTasks(), role, session -> answer(session, DRIVER.forTasks()));
        }
        connect(DRIVER, Message.ROLE_DRIVER, session -> answer(session, DRIVER));
    }

    private static void answer(Session session, Credential credential) throws IOException {
        Proofs proofs = session.challenge(credential);
        proofs.add(ACK);
        session.end(proofs.ofAccepting());
    }

    @Test
    void withoutACredentialNothingIsProven() throws Exception {
        connect(
                null,
                Message.ROLE_PRODUCER,
                session -> {
                    assertEquals(0, ((Message.Hello) session.read()).token().length);
                    session.send(ACK);
                });
    }

    @Test
    void aWrongProofIsRefused() {
        checkUnproven(
                session -> {
                    session.challenge(DRIVER);
                    session.end(new Message.Proof(new byte[32]));
                });
    }

    @Test
    void aProofUnderAnotherKeyIsRefused() {
        checkUnproven(
                session -> {
                    Message.Hello hello = (Message.Hello) session.read();
                    Message.Challenge challenge = new Message.Challenge(new byte[32]);
                    session.send(challenge);
                    Proofs proofs = new Proofs(OTHER.key(), new byte[0]);
                    proofs.add(hello);
                    proofs.add(challenge);
                    proofs.add(session.read());
                    proofs.add(ACK);
                    session.end(proofs.ofAccepting());
                });
    }

    @Test
    void aProofOfAnotherAnswerIsRefused() {
        checkUnproven(
                session -> {
                    Proofs proofs = session.challenge(DRIVER);
                    proofs.add(
                            new Message.HelloAck(
                                    1, "other", 1024, 0, 0, "127.0.0.1", 7337, "i", 0, 1));
                    session.end(proofs.ofAccepting());
                });
    }

    @Test
    void theClientsOwnProofSentBackIsRefused() {
        checkUnproven(
                session -> {
                    Proofs proofs = session.challenge(DRIVER);
                    session.end(proofs.ofConnecting());
                });
        checkUnproven(
                session -> {
                    Message.Hello hello = (Message.Hello) session.read();
                    Message.Challenge challenge =
                            new Message.Challenge(Arrays.copyOf(hello.token(), 32));
                    session.send(challenge);
                    session.end(session.read());
                });
    }

    @Test
    void aMissingProofIsRefused() {
        checkUnproven(
                session -> {
                    session.challenge(DRIVER);
                    session.send(ACK);
                    assertTrue(session.isOver());
                });
    }

    @Test
    void aTaskManagerThatAsksForNoProofIsRefused() {
        checkUnproven(
                session -> {
                    session.read();
                    session.send(ACK);
                    assertTrue(session.isOver());
                });
    }

    @Test
    void aTruncatedProofIsRefused() {
        ClientException.ConnectFailed failure =
                assertThrows(
                        ClientException.ConnectFailed.class,
                        () ->
                                connect(
                                        DRIVER,
                                        Message.ROLE_DRIVER,
                                        session -> {
                                            Proofs proofs = session.challenge(DRIVER);
                                            proofs.add(ACK);
                                            byte[] proof = proofs.ofAccepting().proof();
                                            session.end(
                                                    new Message.Proof(Arrays.copyOf(proof, 31)));
                                        }));
        assertTrue(failure.getMessage().contains("31 bytes (limit 32)"), failure.getMessage());
    }

    @Test
    void aSecondChallengeIsRefused() {
        checkUnexpected(
                DRIVER,
                session -> {
                    session.challenge(DRIVER);
                    session.send(new Message.Challenge(new byte[32]));
                    assertTrue(session.isOver());
                });
    }

    @Test
    void aProofBeforeTheChallengeIsRefused() {
        Script script =
                session -> {
                    session.read();
                    session.send(new Message.Proof(new byte[32]));
                    assertTrue(session.isOver());
                };
        checkUnexpected(DRIVER, script);
        checkUnexpected(null, script);
    }

    private static void checkUnexpected(Credential credential, Script script) {
        ClientException.ConnectFailed failure =
                assertThrows(
                        ClientException.ConnectFailed.class,
                        () -> connect(credential, Message.ROLE_DRIVER, script));
        ClientException.Protocol cause = (ClientException.Protocol) failure.getCause();
        assertEquals(ErrorCode.UNEXPECTED_MESSAGE, cause.code());
    }

    @Test
    void aChallengeWithoutACredentialIsRefused() {
        checkFails(
                null,
                Message.ROLE_DRIVER,
                "there is no credential",
                session -> {
                    session.read();
                    session.send(new Message.Challenge(new byte[32]));
                    assertTrue(session.isOver());
                });
    }

    @Test
    void theCredentialOfTasksIsNoDrivers() {
        checkFails(
                DRIVER.forTasks(),
                Message.ROLE_DRIVER,
                "a driver needs",
                session -> assertTrue(session.isOver()));
    }

    @Test
    void aRefusalOfTheTaskManagerHasTheRemedy() {
        ErrorCode[] codes = {
            ErrorCode.AUTHENTICATION_REQUIRED,
            ErrorCode.AUTHENTICATION_FAILED,
            ErrorCode.CREDENTIAL_EXPIRED,
            ErrorCode.NOT_PERMITTED
        };
        for (ErrorCode code : codes) {
            ClientException.ConnectFailed failure =
                    checkFails(
                            DRIVER,
                            Message.ROLE_DRIVER,
                            code + ": because",
                            session -> {
                                session.read();
                                session.send(refusal(code));
                                assertTrue(session.isOver());
                            });
            assertFalse(failure.getMessage().contains("Start one there"), failure.getMessage());
        }
    }

    /** It runs, so it need not be started; {@code ConnectFailed} lets callers try another one. */
    @Test
    void aDrainingTaskManagerIsToldFromOneThatIsAway() {
        Script script =
                session -> {
                    session.read();
                    session.send(refusal(ErrorCode.SHUTTING_DOWN));
                    assertTrue(session.isOver());
                };
        ClientException.ConnectFailed failure =
                assertThrows(
                        ClientException.ConnectFailed.class,
                        () -> connect(DRIVER.forTasks(), Message.ROLE_PRODUCER, script));
        assertFalse(failure.getMessage().contains("Start one there"), failure.getMessage());
        assertTrue(failure.summary().endsWith("SHUTTING_DOWN: because"), failure.summary());
    }

    private static Message.ErrorResponse refusal(ErrorCode code) {
        return new Message.ErrorResponse(null, code.number(), 2, false, "because", "", "", null);
    }

    @Test
    void theDeadlineIsThatOfTheWholeHandshake() {
        ClientException.ConnectFailed failure =
                assertThrows(
                        ClientException.ConnectFailed.class,
                        () ->
                                connect(
                                        DRIVER,
                                        Message.ROLE_DRIVER,
                                        session -> {
                                            session.challenge(DRIVER);
                                            trickle(session);
                                        }));
        assertTrue(failure.getCause() instanceof ClientException.Deadline, failure.getMessage());
        assertNull(failure.getCause().getCause());
    }

    /** Sends a sign of life now and then, until the client has had enough. */
    private static void trickle(Session session) {
        try {
            for (long nonce = 0; ; nonce++) {
                session.send(new Message.Ping(nonce));
                TimeUnit.MILLISECONDS.sleep(20);
            }
        } catch (IOException e) {
            // The client has closed the connection.
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
