"""The nouns of the bilingual world, a small dictionary by meaning.

A line reads: level, article, German singular, German plural, English singular (and /plural where it is irregular); `-` as
plural marks a mass noun. The paragraph's heading is the noun's class. What "it" may stand for is told by the class, so each
class that "it" may mean has nouns of all three genders on every level, and a class never tells the gender.
"""

DICTIONARY = """
person
1 der Mann Männer man/men
1 die Frau Frauen woman/women
1 das Kind Kinder child/children
1 der Lehrer Lehrer teacher
1 die Königin Königinnen queen
1 das Mädchen Mädchen girl
1 der Junge Jungen boy
1 die Tante Tanten aunt
1 das Baby Babys baby
2 der König Könige king
2 die Schwester Schwestern sister
2 der Bruder Brüder brother
2 die Mutter Mütter mother
2 der Vater Väter father
2 die Tochter Töchter daughter
2 der Bauer Bauern farmer
2 die Kellnerin Kellnerinnen waitress
2 der Nachbar Nachbarn neighbour
2 der Koch Köche cook
3 der Arzt Ärzte doctor
3 die Großmutter Großmütter grandmother
3 der Großvater Großväter grandfather
3 der Onkel Onkel uncle
3 der Sohn Söhne son
3 die Hexe Hexen witch
3 der Zauberer Zauberer wizard
3 der Prinz Prinzen prince
3 die Prinzessin Prinzessinnen princess
3 der Student Studenten student
3 die Schauspielerin Schauspielerinnen actress
3 der Soldat Soldaten soldier
3 die Krankenschwester Krankenschwestern nurse
3 der Gast Gäste guest
3 der Bäcker Bäcker baker
3 der Riese Riesen giant
3 die Fee Feen fairy
3 der Dieb Diebe thief/thieves

animal
1 der Hund Hunde dog
1 die Katze Katzen cat
1 das Pferd Pferde horse
1 der Fuchs Füchse fox
1 die Ziege Ziegen goat
1 das Schwein Schweine pig
2 der Esel Esel donkey
2 die Kuh Kühe cow
2 das Lamm Lämmer lamb
2 der Wolf Wölfe wolf/wolves
2 die Ente Enten duck
2 das Kaninchen Kaninchen rabbit
3 der Bär Bären bear
3 die Maus Mäuse mouse/mice
3 das Kätzchen Kätzchen kitten
3 der Affe Affen monkey
3 die Gans Gänse goose/geese
3 das Kalb Kälber calf/calves
3 der Löwe Löwen lion
3 die Ratte Ratten rat
3 das Fohlen Fohlen foal
3 der Igel Igel hedgehog
3 die Krähe Krähen crow
3 das Kamel Kamele camel

food
1 der Apfel Äpfel apple
1 die Wurst Würste sausage
1 das Brot Brote loaf/loaves
1 der Kuchen Kuchen cake
1 die Birne Birnen pear
1 das Ei Eier egg
2 der Pfannkuchen Pfannkuchen pancake
2 die Kartoffel Kartoffeln potato/potatoes
2 das Brötchen Brötchen roll
2 der Keks Kekse biscuit
2 die Tomate Tomaten tomato/tomatoes
2 das Schnitzel Schnitzel schnitzel
3 der Pfirsich Pfirsiche peach
3 die Pflaume Pflaumen plum
3 das Steak Steaks steak
3 der Pilz Pilze mushroom
3 die Gurke Gurken cucumber
3 das Omelett Omeletts omelette
3 der Kürbis Kürbisse pumpkin
3 die Brezel Brezeln pretzel
3 das Radieschen Radieschen radish
3 der Knödel Knödel dumpling
3 die Zwiebel Zwiebeln onion
3 das Kotelett Koteletts cutlet

drink
1 der Tee - tea
1 die Milch - milk
1 das Wasser - water
2 der Kaffee - coffee
2 die Limonade - lemonade
2 das Bier - beer
3 der Saft - juice
3 die Brühe - broth
3 der Wein - wine

garment
1 der Mantel Mäntel coat
1 die Jacke Jacken jacket
1 das Hemd Hemden shirt
1 der Hut Hüte hat
1 die Mütze Mützen cap
1 das Kleid Kleider dress
2 der Rock Röcke skirt
2 die Bluse Blusen blouse
2 das Kopftuch Kopftücher headscarf/headscarves
2 der Pullover Pullover sweater
2 die Socke Socken sock
2 das Trikot Trikots jersey
3 der Schal Schals scarf/scarves
3 die Schürze Schürzen apron
3 das Nachthemd Nachthemden nightgown
3 der Handschuh Handschuhe glove
3 die Krawatte Krawatten tie
3 das Kostüm Kostüme costume
3 der Anzug Anzüge suit
3 die Weste Westen waistcoat
3 das Unterhemd Unterhemden undershirt

text
1 der Brief Briefe letter
1 die Zeitung Zeitungen newspaper
1 das Buch Bücher book
1 der Roman Romane novel
1 die Geschichte Geschichten story
1 das Gedicht Gedichte poem
2 der Bericht Berichte report
2 die Zeitschrift Zeitschriften magazine
2 das Rezept Rezepte recipe
3 der Aufsatz Aufsätze essay
3 die Urkunde Urkunden certificate
3 das Märchen Märchen fairytale
3 der Vertrag Verträge contract
3 die Notiz Notizen note
3 das Tagebuch Tagebücher diary

tool
1 der Spaten Spaten spade
1 die Axt Äxte axe
1 das Messer Messer knife/knives
2 der Meißel Meißel chisel
2 die Säge Sägen saw
2 das Beil Beile hatchet
3 der Säbel Säbel sabre
3 die Sense Sensen scythe
3 das Schwert Schwerter sword
3 der Dolch Dolche dagger
3 die Sichel Sicheln sickle
3 das Taschenmesser Taschenmesser penknife/penknives

vehicle
1 der Bus Busse bus
1 die Straßenbahn Straßenbahnen tram
1 das Auto Autos car
2 der Zug Züge train
2 die Kutsche Kutschen carriage
2 das Taxi Taxis taxi
2 der Lastwagen Lastwagen truck
2 die Lokomotive Lokomotiven locomotive
2 das Wohnmobil Wohnmobile camper
3 der Traktor Traktoren tractor
3 die Limousine Limousinen limousine
3 das Cabrio Cabrios convertible
3 der Krankenwagen Krankenwagen ambulance
3 die U-Bahn U-Bahnen metro

instrument
2 der Bass Bässe bass
2 die Geige Geigen violin
2 das Klavier Klaviere piano
2 der Dudelsack Dudelsäcke bagpipe
2 die Flöte Flöten flute
2 das Cello Cellos cello
3 der Synthesizer Synthesizer synthesizer
3 die Harfe Harfen harp
3 das Saxophon Saxophone saxophone
3 die Gitarre Gitarren guitar
3 das Banjo Banjos banjo

plant
2 der Baum Bäume tree
2 die Rose Rosen rose
2 das Veilchen Veilchen violet
2 der Busch Büsche bush
2 die Tulpe Tulpen tulip
2 das Gänseblümchen Gänseblümchen daisy
3 der Krokus Krokusse crocus
3 die Sonnenblume Sonnenblumen sunflower
3 das Schneeglöckchen Schneeglöckchen snowdrop
3 der Rosenstrauch Rosensträucher rosebush
3 die Nelke Nelken carnation
3 das Stiefmütterchen Stiefmütterchen pansy

building
1 der Turm Türme tower
1 die Kirche Kirchen church
1 das Haus Häuser house
1 der Palast Paläste palace
1 die Hütte Hütten hut
1 das Schloss Schlösser castle
2 der Bahnhof Bahnhöfe station
2 die Schule Schulen school
2 das Hotel Hotels hotel
2 der Tempel Tempel temple
2 die Fabrik Fabriken factory
2 das Museum Museen museum
3 der Stall Ställe stable
3 die Scheune Scheunen barn
3 das Krankenhaus Krankenhäuser hospital
3 der Leuchtturm Leuchttürme lighthouse
3 die Kapelle Kapellen chapel
3 das Theater Theater theatre
3 der Supermarkt Supermärkte supermarket
3 die Bibliothek Bibliotheken library
3 das Kloster Klöster monastery

furniture
1 der Tisch Tische table
1 die Bank Bänke bench
1 das Bett Betten bed
1 der Stuhl Stühle chair
1 die Truhe Truhen chest
1 das Sofa Sofas sofa
2 der Sessel Sessel armchair
2 die Kommode Kommoden dresser
2 das Regal Regale bookcase
3 der Hocker Hocker stool
3 die Matratze Matratzen mattress
3 das Pult Pulte lectern
3 der Schreibtisch Schreibtische desk
3 die Couch Couchs couch
3 das Kinderbett Kinderbetten cot

container
2 der Korb Körbe basket
2 die Kiste Kisten crate
2 das Glas Gläser glass
2 der Eimer Eimer bucket
2 die Schüssel Schüsseln bowl
2 das Fass Fässer barrel
3 der Becher Becher mug
3 die Flasche Flaschen bottle
3 das Aquarium Aquarien aquarium
3 der Krug Krüge jug
3 die Tonne Tonnen bin
3 das Fläschchen Fläschchen phial

device
2 der Computer Computer computer
2 die Lampe Lampen lamp
2 das Radio Radios radio
2 der Fernseher Fernseher television
2 die Kamera Kameras camera
2 das Smartphone Smartphones smartphone
3 der Drucker Drucker printer
3 die Konsole Konsolen console
3 das Telefon Telefone telephone
3 der Toaster Toaster toaster
3 die Taschenlampe Taschenlampen torch
3 das Mikrofon Mikrofone microphone

part
1 die Tür Türen door
1 das Fenster Fenster window
2 das Tor Tore gate
3 der Kasten Kästen box
3 das Fach Fächer compartment

room
2 das Zimmer Zimmer room
2 die Küche Küchen kitchen
2 der Keller Keller cellar
3 das Büro Büros office
3 die Garage Garagen garage
3 der Saal Säle hall
3 der Schuppen Schuppen shed
"""

# Weak masculines take their plural form in every case but the nominative singular: der Löwe, den Löwen, dem Löwen.
WEAK = frozenset({"Junge", "Bauer", "Nachbar", "Prinz", "Student", "Soldat", "Riese", "Bär", "Affe", "Löwe"})
