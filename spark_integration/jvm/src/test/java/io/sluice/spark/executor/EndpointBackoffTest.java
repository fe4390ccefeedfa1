package io.sluice.spark.executor;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.wire.Endpoint;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class EndpointBackoffTest {
    private static final Endpoint ENDPOINT = Endpoint.tcp("host", 7337);
    private static final Endpoint OTHER = Endpoint.tcp("host", 7338);
    private static final int ROLE = 1;

    /** Near the end of the range, where {@link System#nanoTime} may be. */
    private long now = Long.MAX_VALUE - 5;

    private final EndpointBackoff backoff = new EndpointBackoff(() -> now);

    @ParameterizedTest
    @CsvSource({"0, 1000", "20, 1000", "300, 3000", "5000, 10000", "600000, 10000"})
    void aPenaltyLastsTenTimesTheAttemptWithinBounds(long attemptMillis, long penaltyMillis) {
        long began = now;
        now += TimeUnit.MILLISECONDS.toNanos(attemptMillis);
        backoff.failed(ENDPOINT, ROLE, began);
        now += TimeUnit.MILLISECONDS.toNanos(penaltyMillis) - 1;
        assertTrue(backoff.has(ENDPOINT, ROLE));
        now++;
        assertFalse(backoff.has(ENDPOINT, ROLE));
    }

    @Test
    void aPenaltyIsForOneEndpointAndRole() {
        backoff.failed(ENDPOINT, ROLE, now);
        assertFalse(backoff.has(OTHER, ROLE));
        assertFalse(backoff.has(ENDPOINT, ROLE + 1));
    }

    @Test
    void anEndpointWithoutRoomIsPassedOverForTheLongestTime() {
        backoff.avoid(ENDPOINT, ROLE);
        now += EndpointBackoff.MAX_NANOS - 1;
        assertTrue(backoff.has(ENDPOINT, ROLE));
        now++;
        assertFalse(backoff.has(ENDPOINT, ROLE));
    }

    @Test
    void anAnswerEndsThePenalty() {
        backoff.failed(ENDPOINT, ROLE, now);
        backoff.answered(ENDPOINT, ROLE);
        assertFalse(backoff.has(ENDPOINT, ROLE));
    }

    @Test
    void failuresAreCountedSinceTheLastAnswer() {
        assertEquals(0, backoff.failuresInARow(ENDPOINT, ROLE));
        backoff.failed(ENDPOINT, ROLE, now);
        now += EndpointBackoff.MAX_NANOS; // The penalty is over, but the endpoint has not answered.
        backoff.failed(ENDPOINT, ROLE, now);
        assertEquals(2, backoff.failuresInARow(ENDPOINT, ROLE));
        assertEquals(0, backoff.failuresInARow(ENDPOINT, ROLE + 1));
        backoff.answered(ENDPOINT, ROLE);
        assertEquals(0, backoff.failuresInARow(ENDPOINT, ROLE));
    }
}
