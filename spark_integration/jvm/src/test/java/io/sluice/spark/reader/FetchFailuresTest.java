package io.sluice.spark.reader;

import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;

import io.sluice.client.wire.ClientException;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.junit.jupiter.api.Test;

class FetchFailuresTest {
    @Test
    void aTaskFailureIsNotAnIOException() {
        IOException lost =
                new ClientException.Deadline("tm", "an answer", 1, "spark.sluice.io.timeout");
        RuntimeException thrown = new FetchFailures(null, 1, 0, null).thrown(lost);
        // PySpark takes an IOException for a failure of its connection to the worker.
        assertInstanceOf(UncheckedIOException.class, thrown);
        assertSame(lost, thrown.getCause());
    }
}
