package io.sluice.spark.ui;

import io.sluice.spark.common.Compat;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.function.Supplier;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.UIUtils;
import org.apache.spark.ui.WebUIPage;
import scala.Function0;
import scala.Option;
import scala.collection.immutable.$colon$colon;
import scala.collection.immutable.List;
import scala.collection.immutable.Nil$;
import scala.xml.Node;
import scala.xml.Unparsed;

/**
 * The page of the tab. Spark 3.5 and Spark 4 have different servlet APIs and sequences, so there
 * are two {@code render} methods: on each line, one implements Spark's method and the other is
 * never linked.
 */
final class StatusPage extends WebUIPage {
    private final SparkUITab tab;
    private final Supplier<ApplicationStatus> status;
    private final Method frame;

    /**
     * @throws NoSuchMethodException if this Spark is not supported
     */
    StatusPage(SparkUITab tab, Supplier<ApplicationStatus> status) throws NoSuchMethodException {
        super("");
        this.tab = tab;
        this.status = status;
        this.frame = frameMethod();
    }

    /**
     * Finds the method that frames a page. Its parameters are request, title, content, tab, an
     * optional refresh interval, then flags: two on 3.5, more on later lines.
     */
    private static Method frameMethod() throws NoSuchMethodException {
        for (Method method : UIUtils.class.getMethods()) {
            Class<?>[] types = method.getParameterTypes();
            if (method.getName().equals("headerSparkPage")
                    && types.length >= 5
                    && types[2] == Function0.class
                    && types[3] == SparkUITab.class
                    && types[4] == Option.class) {
                return method;
            }
        }
        throw new NoSuchMethodException("UIUtils.headerSparkPage");
    }

    /** Renders the page for Spark 4. */
    @Override
    @SuppressWarnings("unchecked")
    public scala.collection.immutable.Seq<Node> render(
            jakarta.servlet.http.HttpServletRequest request) {
        return (scala.collection.immutable.Seq<Node>) page(request);
    }

    /** Renders the page for Spark 3.5. */
    @SuppressWarnings("unchecked")
    public scala.collection.Seq<Node> render(javax.servlet.http.HttpServletRequest request) {
        return (scala.collection.Seq<Node>) page(request);
    }

    private Object page(Object request) {
        Node content = new Unparsed(new StatusHtml(status.get()).toString());
        List<Node> nodes = new $colon$colon<>(content, nil());
        Object[] arguments = new Object[frame.getParameterCount()];
        arguments[0] = request;
        arguments[1] = "Sluice";
        arguments[2] = (Function0<Object>) () -> nodes;
        arguments[3] = tab;
        arguments[4] = Option.empty();
        for (int i = 5; i < arguments.length; i++) {
            arguments[i] = false;
        }
        try {
            return frame.invoke(null, arguments);
        } catch (InvocationTargetException e) {
            throw Compat.sneakyThrow(e.getCause());
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    @SuppressWarnings("unchecked")
    private static List<Node> nil() {
        return (List<Node>) (List<?>) Nil$.MODULE$;
    }
}
