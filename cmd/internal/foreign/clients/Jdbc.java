// The JDBC driver, which BI tools use: HTTP.
import java.sql.*;
import java.util.*;

public class Jdbc {
    interface Check { void run() throws Exception; }

    static final String url = "jdbc:clickhouse://" + System.getenv("HOST") + ":" + System.getenv("HTTP_PORT") + "/foreign";
    static int failed;

    static Connection open(String user, String password) throws SQLException {
        Properties p = new Properties();
        p.setProperty("user", user);
        p.setProperty("password", password);
        return DriverManager.getConnection(url, p);
    }

    static void equal(Object got, Object want) {
        if (!Objects.equals(got, want)) throw new AssertionError("got " + got + ", want " + want);
    }

    static void check(String name, Check check) {
        try {
            check.run();
            System.out.println("ok\t" + name);
        } catch (Throwable err) {
            failed++;
            String said = String.valueOf(err.getMessage()).replaceAll("\\s+", " ");
            System.out.println("FAIL\t" + name + "\t" + err.getClass().getSimpleName() + ": " + said.substring(0, Math.min(200, said.length())));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Class.forName("com.clickhouse.jdbc.Driver"); // a source file has no services
        Connection admin = open("admin", System.getenv("ADMIN_PASSWORD"));
        Statement s = admin.createStatement();
        check("connects as both users", () -> {
            for (String user : List.of("admin", "default")) {
                try (Connection c = open(user, user.equals("admin") ? System.getenv("ADMIN_PASSWORD") : "");
                        ResultSet r = c.createStatement().executeQuery("SELECT currentUser()")) {
                    r.next();
                    equal(r.getString(1), user.equals("admin") ? "admin" : "analyst");
                }
            }
        });
        check("types come back as they are", () -> {
            ResultSet r = s.executeQuery("SELECT toInt8(-1), toInt64(5), 'x', 1.5, toDecimal64('1.25', 2), toDate('2026-01-02'), CAST(NULL AS Nullable(Int32)), true, [1, 2]");
            r.next();
            equal(r.getInt(1), -1);
            equal(r.getLong(2), 5L);
            equal(r.getString(3), "x");
            equal(r.getDouble(4), 1.5);
            equal(r.getBigDecimal(5).toPlainString(), "1.25");
            equal(r.getDate(6).toString(), "2026-01-02");
            equal(r.getObject(7), null);
            equal(r.getBoolean(8), true);
            equal(((Object[]) r.getArray(9).getArray()).length, 2);
        });
        check("prepared statements", () -> {
            PreparedStatement p = admin.prepareStatement("SELECT ? + 1, ?");
            p.setInt(1, 4);
            p.setString(2, "it's");
            ResultSet r = p.executeQuery();
            r.next();
            equal(r.getInt(1), 5);
            equal(r.getString(2), "it's");
        });
        check("inserts a batch", () -> {
            s.execute("CREATE OR REPLACE TABLE j (a UInt32, s String) ENGINE = MergeTree ORDER BY a");
            PreparedStatement p = admin.prepareStatement("INSERT INTO j (a, s) VALUES (?, ?)");
            for (int i = 0; i < 1000; i++) {
                p.setInt(1, i);
                p.setString(2, "s" + i);
                p.addBatch();
            }
            p.executeBatch();
            ResultSet r = s.executeQuery("SELECT count(), sum(a) FROM j");
            r.next();
            equal(r.getLong(1) + " " + r.getLong(2), "1000 499500");
        });
        check("large results", () -> {
            ResultSet r = s.executeQuery("SELECT number FROM numbers(200000)");
            long n = 0;
            while (r.next()) n++;
            equal(n, 200000L);
        });
        check("tables and columns are described", () -> {
            List<String> names = new ArrayList<>();
            ResultSet r = admin.getMetaData().getTables(null, "foreign", "j", null);
            while (r.next()) names.add(r.getString("TABLE_NAME"));
            equal(names, List.of("j"));
            r = admin.getMetaData().getColumns(null, "foreign", "j", null);
            names.clear();
            while (r.next()) names.add(r.getString("COLUMN_NAME"));
            equal(names, List.of("a", "s"));
        });
        check("errors have ClickHouse's codes", () -> {
            try {
                s.executeQuery("SELECT * FROM nosuch");
                throw new AssertionError("it did not fail");
            } catch (SQLException err) {
                equal(String.valueOf(err.getMessage()).contains("60"), true); // the driver has no other place for it
            }
        });
        System.exit(failed > 0 ? 1 : 0);
    }
}
