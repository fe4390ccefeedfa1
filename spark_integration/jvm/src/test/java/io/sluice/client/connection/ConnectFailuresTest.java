package io.sluice.client.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.ClientException;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.ErrorCode;
import io.sluice.client.wire.FrameReader;
import io.sluice.client.wire.Message;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;

/** Messages of an endpoint that is not a TaskManager's data port. */
class ConnectFailuresTest {
    @Test
    void anUnknownHostIsNamed() {
        Endpoint endpoint = Endpoint.tcp("no-such-host.invalid", 7337);
        ClientException.ConnectFailed failure =
                assertThrows(ClientException.ConnectFailed.class, () -> connect(endpoint));
        assertEquals("no-such-host.invalid:7337: the host name is unknown", failure.summary());
    }

    @Test
    void anHttpPortIsToldFromADataPort() throws IOException {
        try (ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            Thread answer = new Thread(() -> answerInHttp(server));
            answer.start();
            Endpoint endpoint = Endpoint.tcp("127.0.0.1", server.getLocalPort());
            IOException failure = assertThrows(IOException.class, () -> connect(endpoint));
            assertTrue(failure.getMessage().contains("this is an HTTP port"), failure.getMessage());
        }
    }

    @Test
    void anyOtherLengthIsStillTold() {
        FrameReader reader = new FrameReader(null);
        ByteBuffer frame = ByteBuffer.allocate(8).putInt(0x48545451).putInt(0).flip();
        ClientException.Protocol failure =
                assertThrows(ClientException.Protocol.class, () -> reader.feed(frame, null));
        assertEquals(ErrorCode.FRAME_TOO_LARGE, failure.code());
        assertTrue(failure.getMessage().contains("1213486161 bytes"), failure.getMessage());
    }

    private static void connect(Endpoint endpoint) throws IOException {
        ClientOptions options = new ClientOptions("app", "test", 2_000, 2_000, new ChunkPool(64));
        TaskManagerConnection.connect(endpoint, options, Message.ROLE_DRIVER).close();
    }

    private static void answerInHttp(ServerSocket server) {
        try (Socket socket = server.accept()) {
            socket.getOutputStream()
                    .write("HTTP/1.0 400 Bad Request\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
            socket.getInputStream().readAllBytes();
        } catch (IOException e) {
            // The client has closed the connection.
        }
    }
}
