import io.sluice.client.wire.Endpoint;
import io.sluice.spark.members.EndpointList;
import io.sluice.spark.members.NameResolver;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.stream.Collectors;

/** Resolves the names of an endpoint list once for each line of its input, and prints them. */
public final class Resolve {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        NameResolver resolver =
                new NameResolver(
                        EndpointList.parse(arguments[0], "host").names(),
                        InetAddress::getAllByName,
                        Runnable::run,
                        1,
                        60_000,
                        System::nanoTime,
                        () -> {});
        while (lines.readLine() != null) {
            Thread.sleep(1_100); // the JVM keeps an answer for a second, as the test tells it to
            resolver.tick();
            System.out.println(
                    resolver.addresses().stream()
                            .map(Endpoint::toString)
                            .collect(Collectors.joining(" ")));
        }
    }
}
