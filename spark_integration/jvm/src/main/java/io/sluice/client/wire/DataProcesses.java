package io.sluice.client.wire;

/**
 * The data processes of one TaskManager, with advertised ports at a fixed distance.
 *
 * @param host the advertised host
 * @param firstPort the advertised port of process 0
 * @param count number of processes, at least 1
 */
public record DataProcesses(String host, int firstPort, int count) {
    /** Returns all processes of the TaskManager of which one has answered. */
    public static DataProcesses of(Message.HelloAck answer) {
        return new DataProcesses(
                answer.advertisedHost(),
                answer.dataPort() - Message.PROCESS_PORT_STEP * answer.process(),
                answer.processes());
    }

    /** Returns the advertised port of a process. */
    public int portOf(int process) {
        return firstPort + Message.PROCESS_PORT_STEP * process;
    }

    /** Returns whether one of the processes has the given address. */
    public boolean contains(String otherHost, int port) {
        return host.equals(otherHost) && hasPort(port);
    }

    /**
     * Returns the process that reads what is stored at a port, here or at another TaskManager. Each
     * process reads its own data. If another TaskManager has as many processes and the same first
     * port, each process here connects to one process there; otherwise perhaps to several.
     */
    public int readerOf(int port) {
        return hasPort(port)
                ? (port - firstPort) / Message.PROCESS_PORT_STEP
                : Math.floorMod(port / Message.PROCESS_PORT_STEP, count);
    }

    private boolean hasPort(int port) {
        int distance = port - firstPort;
        return distance >= 0
                && distance < Message.PROCESS_PORT_STEP * count
                && distance % Message.PROCESS_PORT_STEP == 0;
    }
}
