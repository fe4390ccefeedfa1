package io.sluice.client.wire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class EndpointTest {
    private static Endpoint parse(String text) {
        return Endpoint.parse(text, "own-host");
    }

    @Test
    void hostAndPortAreSeparated() {
        assertEquals(Endpoint.tcp("node-1", 7337), parse(" node-1:7337 "));
    }

    @Test
    void bracketsEncloseAnIpv6Address() {
        Endpoint endpoint = parse("[2001:db8::1]:7337");
        assertEquals(Endpoint.tcp("2001:db8::1", 7337), endpoint);
        assertEquals("[2001:db8::1]:7337", endpoint.toString());
    }

    @Test
    void aSocketPathMayHaveTheHost() {
        assertEquals("unix:/run/own-host.sock", parse("unix:/run/{host}.sock").toString());
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "",
                "host",
                ":7337",
                "host:",
                "a:b:7337",
                "2001:db8::1:7337",
                "[]:7337",
                "host:0",
                "host:65536",
                "host:+80",
                "host:99999999999",
                "unix:relative"
            })
    void anInvalidEndpointIsRefused(String text) {
        assertThrows(IllegalArgumentException.class, () -> parse(text));
    }

    @Test
    void thePortsOfProcessesHaveAFixedDistance() {
        assertEquals(Endpoint.tcp("a", 7343), Endpoint.tcp("a", 7337).ofProcess(0, 3));
        assertEquals(Endpoint.tcp("a", 7337), Endpoint.tcp("a", 7343).ofProcess(3, 0));
        assertEquals(Endpoint.tcp("a", 7339), Endpoint.tcp("a", 7343).ofProcess(3, 1));
        assertEquals(Endpoint.tcp("a", 7343), Endpoint.tcp("a", 7343).ofProcess(3, 3));
    }

    @ParameterizedTest
    @CsvSource({
        "/tm.sock, 0, 0, /tm.sock",
        "/tm.sock, 0, 2, /tm.sock.2",
        "/tm.sock.2, 2, 0, /tm.sock",
        "/tm.sock.2, 2, 11, /tm.sock.11",
        "/tm.sock.11, 11, 1, /tm.sock.1",
        "/tm.1, 0, 1, /tm.1.1",
        "/tm.1.1, 1, 0, /tm.1"
    })
    void theSocketsOfProcessesEndWithTheirIndex(String path, int own, int other, String expected) {
        assertEquals("unix:" + expected, parse("unix:" + path).ofProcess(own, other).toString());
    }

    @Test
    void anEndpointOfAnotherFormLeadsNowhereElse() {
        Endpoint link = parse("unix:/run/current.sock");
        assertEquals(link, link.ofProcess(2, 0));
        assertEquals(Endpoint.tcp("a", 2), Endpoint.tcp("a", 2).ofProcess(5, 0));
        assertEquals(Endpoint.tcp("a", 65535), Endpoint.tcp("a", 65535).ofProcess(0, 1));
    }
}
