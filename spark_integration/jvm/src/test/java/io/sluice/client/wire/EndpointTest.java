package io.sluice.client.wire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
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
}
