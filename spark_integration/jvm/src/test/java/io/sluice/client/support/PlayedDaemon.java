package io.sluice.client.support;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.TaskManagerConnection;
import io.sluice.client.wire.Endpoint;
import io.sluice.client.wire.Message;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;

/**
 * A TaskManager played by the test. It does the handshake by itself; the test reads and sends
 * everything else.
 */
public final class PlayedDaemon implements AutoCloseable {
    public static final String ID = "tm-played";
    public static final int SEGMENT = 1024;
    private static final int READ_TIMEOUT_MILLIS = 10_000;

    private final ServerSocket server;
    private Socket socket;
    private DataInputStream in;

    public PlayedDaemon() throws IOException {
        server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        server.setSoTimeout(READ_TIMEOUT_MILLIS);
    }

    public Endpoint endpoint() {
        return Endpoint.tcp("127.0.0.1", server.getLocalPort());
    }

    /** Connects a client and answers its Hello. */
    public TaskManagerConnection connect(ClientOptions options, int role) throws Exception {
        TaskManagerConnection[] connection = new TaskManagerConnection[1];
        accepting(() -> connection[0] = TaskManagerConnection.connect(endpoint(), options, role));
        return connection[0];
    }

    /** Answers the Hello of the client that connects in {@code connecting}. */
    public void accepting(Connecting connecting) throws Exception {
        Thread accepting = new Thread(this::accept, "played-accept");
        accepting.start();
        connecting.run();
        accepting.join();
    }

    /** Connects a client. */
    @FunctionalInterface
    public interface Connecting {
        void run() throws Exception;
    }

    private void accept() {
        try {
            socket = server.accept();
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(READ_TIMEOUT_MILLIS);
            in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
            read();
            int port = server.getLocalPort();
            send(new Message.HelloAck(1, ID, SEGMENT, 0, 0, "127.0.0.1", port, "i", 0, 1));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Reads the next frame; fails after some seconds. */
    public TestFrames.Received read() throws IOException {
        return TestFrames.read(in);
    }

    /** Returns whether the client has sent something that is still unread. */
    public boolean hasMore() throws IOException {
        return in.available() > 0;
    }

    /** Returns whether the client has closed its end. */
    public boolean isClosedByClient() throws IOException {
        return in.read() < 0;
    }

    public void send(Message message) throws IOException {
        socket.getOutputStream().write(TestFrames.frame(message));
    }

    public void send(Message message, byte[] payload) throws IOException {
        socket.getOutputStream().write(TestFrames.frame(message, payload));
    }

    /** Sends a frame without its last byte, and ends. */
    public void sendCut(Message message, byte[] payload) throws IOException {
        byte[] frame = TestFrames.frame(message, payload);
        socket.getOutputStream().write(frame, 0, frame.length - 1);
        socket.shutdownOutput();
    }

    @Override
    public void close() throws IOException {
        server.close();
        if (socket != null) {
            socket.close();
        }
    }
}
