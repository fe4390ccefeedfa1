package io.sluice.spark.ui;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.List;
import java.util.Map;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.junit.jupiter.api.Test;

/** Checks the form of the events in event logs, which other versions must be able to read. */
class EventsTest {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final SluiceShuffleEvent SHUFFLE =
            new SluiceShuffleEvent(7, 1, 2, "disabled", "off", 3, 4, 5, true);
    private static final SluiceStatusEvent STATUS =
            new SluiceStatusEvent(
                    List.of(
                            new SluiceStatusEvent.TaskManager(
                                    "id", "host:7337", "http://host/", true, "", 6, 7)),
                    1,
                    Map.of("bytesWritten", 8L),
                    Map.of(3, 9L));

    private static final String SHUFFLE_TEXT =
            "{'Event':'io.sluice.spark.ui.SluiceShuffleEvent','shuffleId':7,'maps':1,"
                    + "'partitions':2,'policy':'disabled','reason':'off','stageId':3,"
                    + "'records':4,'bytes':5,'released':true}";
    private static final String STATUS_TEXT =
            "{'Event':'io.sluice.spark.ui.SluiceStatusEvent','taskManagers':[{'id':'id',"
                    + "'address':'host:7337','url':'http://host/','reachable':true,"
                    + "'failure':'','mapOutputs':6,'bytes':7}],'registered':1,"
                    + "'counters':{'bytesWritten':8},'creditWaitNanos':{'3':9}}";

    private static SparkListenerEvent read(String text) throws Exception {
        return JSON.readValue(text.replace('\'', '"'), SparkListenerEvent.class);
    }

    @Test
    void theFormNeverChanges() throws Exception {
        assertEquals(SHUFFLE_TEXT, JSON.writeValueAsString(SHUFFLE).replace('"', '\''));
        assertEquals(STATUS_TEXT, JSON.writeValueAsString(STATUS).replace('"', '\''));
    }

    @Test
    void eventsAreReadBack() throws Exception {
        assertEquals(SHUFFLE, read(SHUFFLE_TEXT));
        assertEquals(STATUS, read(STATUS_TEXT));
    }

    @Test
    void fieldsOfOtherVersionsAreIgnoredOrEmpty() throws Exception {
        assertEquals(
                SluiceStatusEvent.NONE,
                read("{'Event':'io.sluice.spark.ui.SluiceStatusEvent','more':[1]}"));
        assertEquals(
                new SluiceShuffleEvent(1, 0, 0, "", "", 0, 0, 0, false),
                read("{'Event':'io.sluice.spark.ui.SluiceShuffleEvent','shuffleId':1,'more':{}}"));
    }
}
