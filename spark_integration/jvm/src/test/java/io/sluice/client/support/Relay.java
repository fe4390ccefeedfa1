package io.sluice.client.support;

import io.sluice.client.wire.Endpoint;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.atomic.AtomicInteger;

/** Relays TCP connections to a server, one byte at a time or up to a given byte. */
public final class Relay implements AutoCloseable {
    /** Bytes of the server after which a connection is cut off. */
    public final AtomicInteger mostFromServer = new AtomicInteger(Integer.MAX_VALUE);

    private final ServerSocket listener;
    private final int port;
    private final int chunkBytes;

    public Relay(int port, int chunkBytes) throws IOException {
        this.port = port;
        this.chunkBytes = chunkBytes;
        listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        start(this::accept);
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work, "relay");
        thread.setDaemon(true);
        thread.start();
    }

    public Endpoint endpoint() {
        return Endpoint.tcp("127.0.0.1", listener.getLocalPort());
    }

    private void accept() {
        try {
            while (true) {
                Socket client = listener.accept();
                Socket server = new Socket(InetAddress.getLoopbackAddress(), port);
                client.setTcpNoDelay(true);
                server.setTcpNoDelay(true);
                start(() -> copy(client, server, Integer.MAX_VALUE));
                start(() -> copy(server, client, mostFromServer.get()));
            }
        } catch (IOException e) {
            // Closed by the test.
        }
    }

    private void copy(Socket from, Socket to, int most) {
        byte[] bytes = new byte[chunkBytes];
        int left = most;
        try (from;
                to) {
            InputStream in = from.getInputStream();
            OutputStream out = to.getOutputStream();
            for (int n = in.read(bytes); n >= 0; n = in.read(bytes)) {
                out.write(bytes, 0, Math.min(n, left));
                left -= n;
                if (left <= 0) {
                    return;
                }
            }
        } catch (IOException e) {
            // One side has gone.
        }
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }
}
