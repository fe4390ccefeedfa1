package io.sluice.spark.common;

import io.sluice.client.wire.DataProcesses;
import io.sluice.client.wire.Endpoint;
import io.sluice.spark.members.Places;
import java.util.ArrayList;
import java.util.List;

/**
 * A TaskManager that the driver is connected to, as it is sent to executors.
 *
 * @param host the advertised host
 * @param firstPort the advertised port of process 0
 * @param port the advertised port of a process that the driver is connected to
 * @param load the load that it has reported; null if it does not report
 * @param dialed endpoints at which the driver has reached it
 */
public record Member(String host, int firstPort, int port, Load load, List<Endpoint> dialed) {
    private static final int FIELDS = 9;
    private static final String NONE = "-";

    /** Below this number, map outputs being written make no difference. */
    private static final long FEW_OUTPUTS = 8;

    private static final long MIB = 1 << 20;

    /**
     * State and load in coarse steps, so that they change rarely.
     *
     * @param isDraining whether it takes no new map outputs
     * @param writers class of the number of map outputs being written, by powers of two
     * @param free class of the free space, by powers of two; 0 if it is full
     */
    public record Load(Places places, boolean isDraining, int writers, int free) {
        public static Load of(Places places, boolean isDraining, long openOutputs, long freeBytes) {
            return new Load(
                    places,
                    isDraining,
                    powerOfTwo(openOutputs / FEW_OUTPUTS),
                    powerOfTwo(freeBytes / MIB));
        }

        private static int powerOfTwo(long number) {
            return Long.SIZE - Long.numberOfLeadingZeros(Math.max(0, number));
        }

        /** Returns whether it should get no map outputs. */
        public boolean refusesOutputs() {
            return isDraining || free == 0;
        }
    }

    public Endpoint endpoint() {
        return Endpoint.tcp(host, port);
    }

    /** Returns whether these processes belong to this TaskManager. */
    public boolean isThat(DataProcesses processes) {
        return host.equals(processes.host()) && firstPort == processes.firstPort();
    }

    public Places places() {
        return load == null ? Places.UNKNOWN : load.places();
    }

    /** Appends the fields of a message. */
    void write(List<String> message) {
        message.add(host);
        message.add(Integer.toString(firstPort));
        message.add(Integer.toString(port));
        message.add(load == null ? NONE : Boolean.toString(load.isDraining()));
        message.add(places().node());
        message.add(places().zone());
        message.add(Integer.toString(load == null ? 0 : load.writers()));
        message.add(Integer.toString(load == null ? 0 : load.free()));
        message.add(String.join(" ", dialed.stream().map(Endpoint::toString).toList()));
    }

    /** Reads all members of a message from a field on. */
    static List<Member> read(String[] message, int first) {
        List<Member> members = new ArrayList<>();
        for (int i = first; i + FIELDS <= message.length; i += FIELDS) {
            members.add(readOne(message, i));
        }
        return List.copyOf(members);
    }

    private static Member readOne(String[] message, int i) {
        Load load =
                message[i + 3].equals(NONE)
                        ? null
                        : new Load(
                                new Places(message[i + 4], message[i + 5]),
                                Boolean.parseBoolean(message[i + 3]),
                                Integer.parseInt(message[i + 6]),
                                Integer.parseInt(message[i + 7]));
        List<Endpoint> dialed = new ArrayList<>();
        for (String each : message[i + 8].split(" ", -1)) {
            if (!each.isEmpty()) {
                dialed.add(Endpoint.parse(each, ""));
            }
        }
        return new Member(
                message[i],
                Integer.parseInt(message[i + 1]),
                Integer.parseInt(message[i + 2]),
                load,
                List.copyOf(dialed));
    }
}
