package underlay.jvm;

/** An operation was refused before it had any effect: it may be repeated, here or elsewhere. */
public final class NotDone extends Exception {
    private static final long serialVersionUID = 1;

    public NotDone(String problem) {
        this(problem, null);
    }

    /** Thrown often while there is no master, so it has no stack trace. */
    public NotDone(String problem, Throwable cause) {
        super(problem, cause, false, false);
    }
}
