package io.sluice.spark.members;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.Endpoint;
import io.sluice.spark.members.EndpointList.DnsName;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class EndpointListTest {
    private final List<ServerSocketChannel> sockets = new ArrayList<>();

    @AfterEach
    void close() throws IOException {
        for (ServerSocketChannel socket : sockets) {
            socket.close();
        }
    }

    private void listen(Path path) throws IOException {
        ServerSocketChannel socket = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        sockets.add(socket);
        socket.bind(UnixDomainSocketAddress.of(path));
    }

    @Test
    void eachFormIsRecognized() {
        EndpointList list =
                EndpointList.parse(
                        "tm1:1, dns:sluice, dns:sluice.data.svc.:7447, [::1]:2, unix:/{host}.sock,"
                                + " unix:/run/{host}/*.sock",
                        "h");
        assertEquals(
                List.of("tm1:1", "[::1]:2", "unix:/h.sock"),
                list.fixed().stream().map(Endpoint::toString).toList());
        assertEquals(
                List.of(new DnsName("sluice", 7337), new DnsName("sluice.data.svc.", 7447)),
                list.names());
        assertEquals(List.of(new SocketGlob("/run/h", "*.sock")), list.globs());
        assertEquals(
                List.of("tm1:1", "[::1]:2", "dns:sluice:7337", "dns:sluice.data.svc.:7447"),
                list.tcp());
        assertEquals(list.fixed(), list.local());
    }

    @Test
    void anItemThatRepeatsCountsOnce() {
        EndpointList list = EndpointList.parse("dns:a,dns:a:7337,unix:/r/*,unix:/r/*", "h");
        assertEquals(1, list.names().size());
        assertEquals(1, list.globs().size());
    }

    @Test
    void theMessageOnAWrongItemSaysTheForm() {
        for (String wrong :
                new String[] {
                    "dns:",
                    "dns::7337",
                    "dns:a:0",
                    "dns:a:65536",
                    "dns:a:port",
                    "dns:a b",
                    "dns:10.0.0.1",
                    "dns:-a",
                    "dns:a..b",
                    "dns:[::1]:7337",
                    "dns:" + "a".repeat(254),
                    "unix:/run/*/tm.sock",
                    "unix:run/*.sock",
                    "unix:/run/[a.sock",
                    "unix:/" + "a".repeat(107) + "*",
                    " , "
                }) {
            IllegalArgumentException error =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> EndpointList.parse(wrong, "h"),
                            wrong);
            String message = error.getMessage();
            assertTrue(
                    message.contains("write ")
                            || message.contains("between 1 and 65535")
                            || message.contains("close each ["),
                    message);
        }
    }

    @Test
    void aGlobIsTheSocketsThatMatchItNow(@TempDir Path directory) throws IOException {
        EndpointList list = EndpointList.parse("unix:" + directory + "/*.sock", "h");
        assertEquals(List.of(), list.local());
        listen(directory.resolve("b.sock"));
        listen(directory.resolve("a.sock"));
        listen(directory.resolve("a.other"));
        Files.createFile(directory.resolve("file.sock"));
        assertEquals(
                List.of(directory + "/a.sock", directory + "/b.sock"),
                list.local().stream().map(Endpoint::path).toList());
    }

    @Test
    void furtherProcessesAreNotOtherTaskManagers(@TempDir Path directory) throws IOException {
        for (String name : List.of("tm", "tm.1", "tm.2", "tm.x", "other.1")) {
            listen(directory.resolve(name));
        }
        EndpointList list = EndpointList.parse("unix:" + directory + "/*", "h");
        assertEquals(
                List.of(directory + "/other.1", directory + "/tm", directory + "/tm.x"),
                list.local().stream().map(Endpoint::path).toList());
    }

    @Test
    void bracesAreLiteral(@TempDir Path directory) throws IOException {
        listen(directory.resolve("{a,b}1"));
        listen(directory.resolve("a1"));
        // A comma would end the item.
        SocketGlob glob = new SocketGlob(directory.toString(), "{a,b}*");
        assertEquals(
                List.of(directory + "/{a,b}1"),
                glob.sockets().stream().map(Endpoint::path).toList());
    }

    @Test
    void aDirectoryThatDoesNotExistHasNoSockets() {
        assertEquals(List.of(), new SocketGlob("/nonexistent", "*").sockets());
    }
}
