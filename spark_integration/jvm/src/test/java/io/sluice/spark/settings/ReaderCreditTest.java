package io.sluice.spark.settings;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Tests how the buffers in flight to a reader become credit. */
class ReaderCreditTest {
    @ParameterizedTest
    @CsvSource({
        "16, 1024, 1, 16, 4",
        "16, 1024, 64, 16, 4",
        "16, 1024, 100, 10, 2",
        "16, 1024, 1000, 2, 1",
        "2, 2, 1, 2, 1",
        "1024, 65536, 2, 1024, 256",
    })
    void buffersAreSharedByChannelsAndFourAreAMessage(
            int perChannel, int most, int channels, int pipelined, int stored) {
        SluiceSettings.Reader reader =
                new SluiceSettings.Reader(perChannel, most, 0, 0, false, null);
        assertEquals(pipelined, reader.pipelinedCreditFor(channels));
        assertEquals(stored, reader.storedCreditFor(channels));
    }
}
