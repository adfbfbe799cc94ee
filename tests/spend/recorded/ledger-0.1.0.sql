PRAGMA application_id = 1213809228;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE caps (
    level TEXT PRIMARY KEY CHECK (level IN ('request', 'conversation', 'day', 'month', 'total')),
    nanousd INTEGER NOT NULL CHECK (typeof(nanousd) = 'integer' AND nanousd >= 0)
);
INSERT INTO "caps" VALUES('total',20000000000);
INSERT INTO "caps" VALUES('day',500000000);
INSERT INTO "caps" VALUES('request',10000000);
CREATE TABLE closed (
    endpoint TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    why TEXT NOT NULL
);
INSERT INTO "closed" VALUES('https://dear.example.com',1791728000,'it charged a lot');
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL CHECK (typeof(at) = 'integer'),
    endpoint TEXT NOT NULL,
    request TEXT NOT NULL,
    conversation TEXT NOT NULL,
    client TEXT NOT NULL,
    price TEXT NOT NULL,
    room INTEGER,
    granted INTEGER NOT NULL CHECK (typeof(granted) = 'integer' AND granted >= 0),
    reserved INTEGER NOT NULL CHECK (typeof(reserved) = 'integer' AND reserved >= 0),
    charged INTEGER NOT NULL DEFAULT 0 CHECK (typeof(charged) = 'integer' AND charged >= 0),
    requests INTEGER NOT NULL DEFAULT 0 CHECK (requests >= 0),
    state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'settled', 'reconciled')),
    CHECK (room IS NULL OR granted <= room),
    CHECK (state = 'open' OR reserved = 0)
);
INSERT INTO "entries" VALUES(1,1790000000,'https://api.example.com','q1','talk','laptop','1/0.1/4, stated by --price',10000000,625000,0,431000,5,'settled');
INSERT INTO "entries" VALUES(2,1790000000,'https://api.example.com','q2','talk','laptop','1/0.1/4, stated by --price',10000000,625000,248000,100000,2,'open');
INSERT INTO "entries" VALUES(3,1791728000,'http://gpu:8000','q3','talk','desk','1/0.1/4, stated by --price',10000000,625000,625000,0,0,'open');
INSERT INTO "entries" VALUES(4,1791728000,'http://gpu:8000','q4','talk','laptop','1/0.1/4, stated by --price',10000000,248000,0,77000,0,'reconciled');
INSERT INTO "entries" VALUES(5,1791728000,'https://dear.example.com','q5','talk','laptop','1/0.1/4, stated by --price',10000000,248000,0,1152921504606846976,1,'settled');
CREATE TABLE totals (
    level TEXT NOT NULL,
    window TEXT NOT NULL,
    spent INTEGER NOT NULL CHECK (typeof(spent) = 'integer' AND spent >= 0),
    reserved INTEGER NOT NULL CHECK (typeof(reserved) = 'integer' AND reserved >= 0),
    PRIMARY KEY (level, window)
) WITHOUT ROWID;
INSERT INTO "totals" VALUES('client','desk',0,625000);
INSERT INTO "totals" VALUES('client','laptop',1152921504607454976,248000);
INSERT INTO "totals" VALUES('conversation','talk',1152921504607454976,873000);
INSERT INTO "totals" VALUES('day','2026-09-21',531000,248000);
INSERT INTO "totals" VALUES('day','2026-10-11',1152921504606923976,625000);
INSERT INTO "totals" VALUES('month','2026-09',531000,248000);
INSERT INTO "totals" VALUES('month','2026-10',1152921504606923976,625000);
INSERT INTO "totals" VALUES('request','q1',431000,0);
INSERT INTO "totals" VALUES('request','q2',100000,248000);
INSERT INTO "totals" VALUES('request','q3',0,625000);
INSERT INTO "totals" VALUES('request','q4',77000,0);
INSERT INTO "totals" VALUES('request','q5',1152921504606846976,0);
INSERT INTO "totals" VALUES('total','',1152921504607454976,873000);
COMMIT;
