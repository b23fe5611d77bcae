"""The suite's own tables and triggers, put into each of its databases; the product knows nothing of them.

`fault_event` is append-only: each change of a job or an execution, with the instant, the transaction, and what the row
said before and after. Events of one job are in the order in which they happened, for all writers lock its row. Events
of a transaction that rolled back are gone with it. An extended lease is no event. `fault_tick`, `fault_hold`
and `fault_pause` are the same for the ticks of schedules that were dealt with, for keys that are held for a period, and
for pauses; `fault_stop` for limit keys that a task has held (`Throttled`); `fault_override` and `fault_breaker` for
overrides of limits and for circuit breakers. `fault_edge` has the edges of workflows; `fault_batch` and `fault_step`
have the changes of batches and of durable steps, numbered by the sequence of `fault_event`, so that the order of all
three is known.
"""

from typing import Final

SCHEMA: Final = r"""
CREATE TABLE fault_event (
    id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), xid xid8 NOT NULL,
    place text NOT NULL, op text NOT NULL, job_id bigint NOT NULL, execution_id bigint, tag text, old jsonb, new jsonb
);
CREATE TABLE fault_effect (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL, execution_id bigint NOT NULL, kind text NOT NULL
);
CREATE TABLE fault_order (tag text PRIMARY KEY);
CREATE TABLE fault_tick (
    id bigserial PRIMARY KEY, xid xid8 NOT NULL, schedule_id bigint NOT NULL, tick_at timestamptz NOT NULL,
    job_id bigint
);
CREATE TABLE fault_hold (
    id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), xid xid8 NOT NULL, task text NOT NULL,
    key text NOT NULL, job_id bigint NOT NULL, held_until timestamptz NOT NULL
);
CREATE TABLE fault_pause (
    id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), xid xid8 NOT NULL, kind text NOT NULL,
    name text NOT NULL, paused boolean NOT NULL, paused_until timestamptz, paused_by text NOT NULL
);
CREATE TABLE fault_stop (
    id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), limit_key text NOT NULL,
    begins boolean NOT NULL, held_until timestamptz NOT NULL
);
CREATE TABLE fault_override (
    id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), limit_key text NOT NULL,
    valid_until timestamptz, given jsonb
);
CREATE TABLE fault_breaker (
    id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(), xid xid8 NOT NULL,
    limit_key text NOT NULL, is_open boolean NOT NULL, after_execution_id bigint NOT NULL
);
CREATE TABLE fault_edge (job_id bigint NOT NULL, needs_id bigint NOT NULL, policy text NOT NULL);
CREATE TABLE fault_batch (
    id bigint PRIMARY KEY DEFAULT nextval('fault_event_id_seq'), at timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid xid8 NOT NULL, batch_id bigint NOT NULL, new jsonb NOT NULL
);
CREATE TABLE fault_step (
    id bigint PRIMARY KEY DEFAULT nextval('fault_event_id_seq'), at timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid xid8 NOT NULL, job_id bigint NOT NULL, name text NOT NULL, old jsonb, new jsonb
);

CREATE FUNCTION fault_job(job public.pgqueue_job) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'state', job.state, 'attempt', job.attempt, 'crashes', job.crashes, 'max_attempts', job.max_attempts,
        'task', job.task_name, 'run_after', extract(epoch FROM job.run_after),
        'finished_at', extract(epoch FROM job.finished_at), 'cancel', job.cancel_requested_at IS NOT NULL,
        'queue', job.queue_name, 'expires_at', extract(epoch FROM job.expires_at),
        'key', job.unique_key, 'ready_only', job.unique_ready_only IS NOT NULL, 'priority', job.priority,
        'limit_key', job.limit_key, 'weight', coalesce(job.limit_weight, 1), 'order', job.limit_order,
        'batch', job.batch_id, 'in_graph', job.in_graph, 'undoes', job.headers ->> 'pgqueue_compensates'
    )
$$;
CREATE FUNCTION fault_execution(execution public.pgqueue_execution) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'outcome', execution.outcome, 'worker', execution.worker_id, 'attempt', execution.attempt,
        'started', execution.started_at IS NOT NULL, 'lease', extract(epoch FROM execution.lease_expires_at),
        'limit_key', execution.limit_key, 'weight', coalesce(execution.limit_weight, 1),
        'claimed_at', extract(epoch FROM execution.claimed_at),
        'finished_at', extract(epoch FROM execution.finished_at)
    )
$$;
CREATE FUNCTION fault_batch(batch public.pgqueue_batch) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'description', batch.description, 'parent', batch.parent_id, 'closed', batch.closed_at IS NOT NULL,
        'failure', batch.failed_at IS NOT NULL, 'complete', batch.completed_at IS NOT NULL,
        'success', batch.succeeded_at IS NOT NULL,
        'calls', array_remove(ARRAY[
            CASE WHEN batch.on_failure IS NOT NULL THEN 'failure' END,
            CASE WHEN batch.on_complete IS NOT NULL THEN 'complete' END,
            CASE WHEN batch.on_success IS NOT NULL THEN 'success' END
        ], NULL)
    )
$$;
CREATE FUNCTION fault_step(step public.pgqueue_step) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'kind', step.kind, 'position', step.position, 'finished', step.finished_at IS NOT NULL,
        'wake_at', extract(epoch FROM step.wake_at), 'event_name', step.event_name, 'event_key', step.event_key,
        'event', step.event_id, 'compensation', step.compensation IS NOT NULL, 'undone_by', step.compensation_id
    )
$$;
CREATE FUNCTION fault_tag(arguments json) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(arguments::text FROM '"tag": ?"([^"]*)"')
$$;
CREATE FUNCTION fault_job_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.fault_event (xid, place, op, job_id, tag, old, new) VALUES (
        pg_current_xact_id(), 'job', TG_OP, CASE TG_OP WHEN 'DELETE' THEN OLD.id ELSE NEW.id END,
        CASE WHEN TG_OP = 'INSERT' THEN public.fault_tag(NEW.arguments)
             WHEN TG_OP = 'UPDATE' AND NEW.arguments::text <> OLD.arguments::text THEN public.fault_tag(NEW.arguments)
        END,
        CASE WHEN TG_OP <> 'INSERT' THEN public.fault_job(OLD) END,
        CASE WHEN TG_OP <> 'DELETE' THEN public.fault_job(NEW) END
    );
    RETURN NULL;
END $$;
CREATE FUNCTION fault_execution_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.fault_event (xid, place, op, job_id, execution_id, old, new) VALUES (
        pg_current_xact_id(), 'execution', TG_OP, CASE TG_OP WHEN 'DELETE' THEN OLD.job_id ELSE NEW.job_id END,
        CASE TG_OP WHEN 'DELETE' THEN OLD.id ELSE NEW.id END,
        CASE WHEN TG_OP <> 'INSERT' THEN public.fault_execution(OLD) END,
        CASE WHEN TG_OP <> 'DELETE' THEN public.fault_execution(NEW) END
    );
    RETURN NULL;
END $$;
CREATE FUNCTION fault_tick_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.fault_tick (xid, schedule_id, tick_at, job_id)
    VALUES (pg_current_xact_id(), NEW.schedule_id, NEW.tick_at, NEW.job_id);
    RETURN NULL;
END $$;
CREATE FUNCTION fault_hold_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.fault_hold (xid, task, key, job_id, held_until)
    VALUES (pg_current_xact_id(), NEW.task_name, NEW.unique_key, NEW.job_id, NEW.ends_at);
    RETURN NULL;
END $$;
CREATE FUNCTION fault_pause_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO public.fault_pause (xid, kind, name, paused, paused_by)
        VALUES (pg_current_xact_id(), OLD.kind, OLD.name, false, OLD.paused_by);
    ELSE
        INSERT INTO public.fault_pause (xid, kind, name, paused, paused_until, paused_by)
        VALUES (pg_current_xact_id(), NEW.kind, NEW.name, true, NEW.paused_until, NEW.paused_by);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION fault_stop_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.held_until IS NOT NULL THEN
        INSERT INTO public.fault_stop (limit_key, begins, held_until) VALUES (OLD.limit_key, false, OLD.held_until);
    ELSIF TG_OP <> 'DELETE' AND NEW.held_until IS NOT NULL THEN
        INSERT INTO public.fault_stop (limit_key, begins, held_until) VALUES (NEW.limit_key, true, NEW.held_until);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION fault_override_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO public.fault_override (limit_key) VALUES (OLD.limit_key);
    ELSE
        INSERT INTO public.fault_override (limit_key, valid_until, given) VALUES (
            NEW.limit_key, NEW.valid_until,
            jsonb_build_object('concurrency', NEW.concurrency, 'rate', NEW.rate, 'burst', NEW.burst)
        );
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION fault_breaker_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.fault_breaker (xid, limit_key, is_open, after_execution_id) VALUES (
        pg_current_xact_id(), CASE TG_OP WHEN 'DELETE' THEN OLD.limit_key ELSE NEW.limit_key END, TG_OP <> 'DELETE',
        CASE TG_OP WHEN 'DELETE' THEN OLD.after_execution_id ELSE NEW.after_execution_id END
    );
    RETURN NULL;
END $$;
CREATE FUNCTION fault_edge_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.fault_edge (job_id, needs_id, policy) VALUES (NEW.job_id, NEW.needs_id, NEW.policy);
    RETURN NULL;
END $$;
CREATE FUNCTION fault_batch_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.fault_batch (xid, batch_id, new)
    VALUES (pg_current_xact_id(), NEW.id, public.fault_batch(NEW));
    RETURN NULL;
END $$;
CREATE FUNCTION fault_step_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO public.fault_step (xid, job_id, name, old, new) VALUES (
        pg_current_xact_id(), CASE TG_OP WHEN 'DELETE' THEN OLD.job_id ELSE NEW.job_id END,
        CASE TG_OP WHEN 'DELETE' THEN OLD.name ELSE NEW.name END,
        CASE WHEN TG_OP <> 'INSERT' THEN public.fault_step(OLD) END,
        CASE WHEN TG_OP <> 'DELETE' THEN public.fault_step(NEW) END
    );
    RETURN NULL;
END $$;
CREATE TRIGGER fault_edge AFTER INSERT ON pgqueue_dependency FOR EACH ROW EXECUTE FUNCTION fault_edge_event();
CREATE TRIGGER fault_batch AFTER INSERT OR UPDATE ON pgqueue_batch
    FOR EACH ROW EXECUTE FUNCTION fault_batch_event();
CREATE TRIGGER fault_step AFTER INSERT OR UPDATE OR DELETE ON pgqueue_step
    FOR EACH ROW EXECUTE FUNCTION fault_step_event();
CREATE TRIGGER fault_override AFTER INSERT OR UPDATE OR DELETE ON pgqueue_limit_override
    FOR EACH ROW EXECUTE FUNCTION fault_override_event();
CREATE TRIGGER fault_breaker AFTER INSERT OR UPDATE OR DELETE ON pgqueue_open_breaker
    FOR EACH ROW EXECUTE FUNCTION fault_breaker_event();
CREATE TRIGGER fault_tick AFTER INSERT OR UPDATE ON pgqueue_schedulerun
    FOR EACH ROW EXECUTE FUNCTION fault_tick_event();
CREATE TRIGGER fault_hold AFTER INSERT OR UPDATE ON pgqueue_uniqueness_window
    FOR EACH ROW EXECUTE FUNCTION fault_hold_event();
CREATE TRIGGER fault_pause AFTER INSERT OR UPDATE OR DELETE ON pgqueue_pause
    FOR EACH ROW EXECUTE FUNCTION fault_pause_event();
CREATE TRIGGER fault_stop AFTER INSERT OR DELETE ON pgqueue_limit_state
    FOR EACH ROW EXECUTE FUNCTION fault_stop_event();
CREATE TRIGGER fault_job AFTER INSERT OR UPDATE OR DELETE ON pgqueue_job
    FOR EACH ROW EXECUTE FUNCTION fault_job_event();
CREATE TRIGGER fault_execution_new AFTER INSERT OR DELETE ON pgqueue_execution
    FOR EACH ROW EXECUTE FUNCTION fault_execution_event();
CREATE TRIGGER fault_execution_changed AFTER UPDATE ON pgqueue_execution FOR EACH ROW
    WHEN (OLD.outcome IS DISTINCT FROM NEW.outcome OR OLD.job_id <> NEW.job_id OR OLD.worker_id <> NEW.worker_id)
    EXECUTE FUNCTION fault_execution_event();
"""
